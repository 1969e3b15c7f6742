# The library for other programs: find_package(cleave), then target_link_libraries(program PRIVATE cleave::runtime).
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY CLEAVE_LIBRARIES)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cleave)

install(TARGETS ${libraries} cleave_flags cleave_openmp EXPORT cleave ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(CLEAVE_HAVE_GLOO)
  install(TARGETS cleave_gloo EXPORT cleave)
endif()
if(CLEAVE_APP)
  install(TARGETS cleave-bin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(EXPORT cleave NAMESPACE cleave:: DESTINATION ${package_dir})
foreach(folder core device kernels comm config_schema optim offload zero tensor_parallel sequence_parallel model pipeline data checkpoint runtime launcher monitor)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave/${folder} FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/include/core/build.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave/core)
configure_package_config_file(cmake/cleaveConfig.cmake.in ${PROJECT_BINARY_DIR}/cleaveConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cleaveConfig.cmake ${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake
  DESTINATION ${package_dir})
