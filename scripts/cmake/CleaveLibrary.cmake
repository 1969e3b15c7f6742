# cleave_library(folder source...): static library of one folder, with the project's warnings and flags. Its PUBLIC
# links are exactly the folders it may include, so the link graph is the include graph.
include(GNUInstallDirs)

# fmt 9 omits constexpr under nvcc and then does not compile.
add_library(cleave_flags INTERFACE)
target_compile_features(cleave_flags INTERFACE cxx_std_20)
target_compile_options(cleave_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3;-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=x86-64-v3;--expt-relaxed-constexpr;-DFMT_USE_CONSTEXPR=1>)

add_library(cleave_warnings INTERFACE)
set(strict $<BOOL:${CLEAVE_WERROR}>)
target_compile_options(cleave_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wconversion;-Wno-sign-conversion;-Wno-float-conversion;$<${strict}:-Werror>>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-Wno-deprecated-gpu-targets;$<${strict}:-Werror=all-warnings>>")

if(CLEAVE_SANITIZE STREQUAL "address")
  target_compile_options(cleave_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(cleave_flags INTERFACE -fsanitize=address,undefined)
elseif(CLEAVE_SANITIZE STREQUAL "thread")
  # ThreadSanitizer does not support fences. Asio has them around its handlers, for a context with several threads.
  target_compile_definitions(cleave_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  target_compile_options(cleave_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(cleave_flags INTERFACE -fsanitize=thread)
elseif(CLEAVE_SANITIZE STREQUAL "fuzzer")
  target_compile_options(cleave_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas)
  target_link_options(cleave_flags INTERFACE -fsanitize=address,undefined)
elseif(NOT CLEAVE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "CLEAVE_SANITIZE is '${CLEAVE_SANITIZE}'; use address, thread, fuzzer (with clang) or leave it empty")
endif()

# Parsing and printing code: optimizing it takes a third of its compile time without a benefit. Files with their own
# options are excluded from units, so builds without optimization do not set the option.
function(cleave_light)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1)
  endif()
endfunction()

# cleave_light for a target that only parses. JSON and command-line headers take most of the compile time, so the files
# are compiled in units that share them.
function(cleave_parser name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
  if(NOT CMAKE_UNITY_BUILD)
    set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 5)
  endif()
endfunction()

function(cleave_library name)
  add_library(${name} STATIC ${ARGN})
  add_library(cleave::${name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME cleave_${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/cleave>)
  target_link_libraries(${name} PUBLIC cleave_flags PRIVATE $<BUILD_INTERFACE:cleave_warnings>)
  set_property(GLOBAL APPEND PROPERTY CLEAVE_LIBRARIES ${name})
endfunction()
