# Libraries for a cross build without packages of the target: those that are only headers are taken
# from this machine, through links (its /usr/include as a whole has headers of its own processor);
# GoogleTest is built from the sources that Debian ships.
set(headers ${CMAKE_BINARY_DIR}/host-headers)
file(MAKE_DIRECTORY ${headers})
foreach(name fmt nlohmann tl gtest gmock xxhash.h)
  if(NOT EXISTS /usr/include/${name})
    message(FATAL_ERROR "/usr/include/${name} is missing: tools/setup.sh build installs it")
  endif()
  file(CREATE_LINK /usr/include/${name} ${headers}/${name} SYMBOLIC)
endforeach()
set(XXHASH_INCLUDE ${headers})
set(TL_EXPECTED_INCLUDE ${headers})

add_library(cross_headers INTERFACE)
target_include_directories(cross_headers SYSTEM INTERFACE ${headers})
add_library(fmt::fmt INTERFACE IMPORTED)
target_link_libraries(fmt::fmt INTERFACE cross_headers)
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
target_link_libraries(nlohmann_json::nlohmann_json INTERFACE cross_headers)

if(MILLRACE_TESTS)
  set(from /usr/src/googletest)
  if(NOT EXISTS ${from}/googletest/src/gtest-all.cc)
    message(FATAL_ERROR "${from} is missing: tools/setup.sh arm64 installs googletest")
  endif()
  add_library(cross_gtest STATIC EXCLUDE_FROM_ALL ${from}/googletest/src/gtest-all.cc
    ${from}/googletest/src/gtest_main.cc ${from}/googlemock/src/gmock-all.cc)
  target_include_directories(cross_gtest SYSTEM PUBLIC ${headers}
    PRIVATE ${from}/googletest ${from}/googlemock)
  target_link_libraries(cross_gtest PUBLIC Threads::Threads)
  add_library(GTest::gmock ALIAS cross_gtest)
  add_library(GTest::gtest_main ALIAS cross_gtest)
endif()
