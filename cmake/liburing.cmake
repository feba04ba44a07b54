# io_uring needs liburing. Without it the program reads with its pool of threads, and says why.
find_path(LIBURING_INCLUDE liburing.h)
find_library(LIBURING_LIBRARY uring)
if(LIBURING_INCLUDE AND LIBURING_LIBRARY)
  target_compile_definitions(millrace PRIVATE MILLRACE_HAVE_LIBURING)
  target_include_directories(millrace SYSTEM PRIVATE ${LIBURING_INCLUDE})
  target_link_libraries(millrace PRIVATE ${LIBURING_LIBRARY})
else()
  message(STATUS "liburing is missing (Debian: liburing-dev): io_uring is left out, "
    "reads are done by a pool of threads")
endif()
