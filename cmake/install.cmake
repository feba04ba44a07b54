# cmake --install and find_package(millrace). The Rust archive is not a target of ours that CMake can
# export, so it is installed beside the library and tied to it again in the package configuration.
include(CMakePackageConfigHelpers)

set(MILLRACE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)

install(TARGETS millrace EXPORT millraceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/millrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT millraceTargets NAMESPACE millrace:: DESTINATION ${MILLRACE_PACKAGE_DIR})

set(MILLRACE_RUST_ARCHIVE "")
if(TARGET millrace_text_rs)
  get_target_property(archive millrace_text_rs IMPORTED_LOCATION)
  set(MILLRACE_RUST_ARCHIVE libmillrace_text_rs.a)
  install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME ${MILLRACE_RUST_ARCHIVE})
endif()

configure_package_config_file(cmake/millraceConfig.cmake.in ${CMAKE_BINARY_DIR}/millraceConfig.cmake
  INSTALL_DESTINATION ${MILLRACE_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_LIBDIR)
# Before 1.0 a minor version may break the API.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/millraceConfig.cmake ${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake
  DESTINATION ${MILLRACE_PACKAGE_DIR})
