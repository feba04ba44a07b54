# Compiler options shared by every target. Numerics are a contract: no fast-math, no contraction;
# a fused multiply-add is always written as std::fma.
add_library(millrace_options INTERFACE)
target_compile_options(millrace_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Werror -ffp-contract=off -fno-math-errno -fno-trapping-math)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all
    # Instrumentation confuses GCC's flow analysis; the release build is the one that must be free of warnings.
    -Wno-error)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()
