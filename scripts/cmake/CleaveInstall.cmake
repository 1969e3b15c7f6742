# Installs the library for other programs: find_package(cleave), then target_link_libraries(program PRIVATE
# cleave::cleave).
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY CLEAVE_LIBRARIES)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cleave)

install(TARGETS ${libraries} cleave_flags cleave_openmp EXPORT cleave ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(CLEAVE_HAVE_GLOO)
  install(TARGETS cleave_gloo EXPORT cleave)
endif()
if(CLEAVE_HAVE_URING)
  install(TARGETS cleave_uring EXPORT cleave)
endif()
if(CLEAVE_APP)
  install(TARGETS cleave-bin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES $<TARGET_FILE_DIR:cleave-bin>/deepspeed DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# Contents of a Python package: the native library and the program, in its own folder.
if(CLEAVE_CAPI AND CLEAVE_APP)
  install(TARGETS cleave_c LIBRARY DESTINATION cleave/lib COMPONENT wheel EXCLUDE_FROM_ALL)
  install(TARGETS cleave-bin RUNTIME DESTINATION cleave/bin COMPONENT wheel EXCLUDE_FROM_ALL)
endif()
install(EXPORT cleave NAMESPACE cleave:: DESTINATION ${package_dir})
foreach(folder ${CLEAVE_FOLDERS})
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave/${folder} FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES cleave.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave)
install(FILES ${PROJECT_BINARY_DIR}/include/core/build.h ${PROJECT_BINARY_DIR}/include/core/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave/core)
configure_package_config_file(scripts/cmake/cleaveConfig.cmake.in ${PROJECT_BINARY_DIR}/cleaveConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cleaveConfig.cmake ${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake
  DESTINATION ${package_dir})
