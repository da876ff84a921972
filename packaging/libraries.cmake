# Finds libjpeg-turbo, as the target `jpeg`, and libdeflate, as `deflate`; where there is none, Pillow decodes JPEGs, or
# PNGs.
#
# The environment's DLIO_SYSTEM_JPEG decides which. Not set: the system's, and where libjpeg-turbo's headers are missing
# the sources in packaging/sources, which a source distribution has. 1: the system's only, for distributions; it ends
# without libjpeg-turbo. 0: those sources only, with their SIMD code, for wheels.
set(DLIO_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/packaging/sources")

if(NOT "$ENV{DLIO_SYSTEM_JPEG}" STREQUAL "0")
  find_package(JPEG QUIET)
  if(JPEG_FOUND)
    # libjpeg-turbo 1.5 brought cropped decoding; the IJG's libjpeg has the same file names without it.
    include(CheckCXXSymbolExists)
    set(CMAKE_REQUIRED_INCLUDES ${JPEG_INCLUDE_DIRS})
    set(CMAKE_REQUIRED_LIBRARIES ${JPEG_LIBRARIES})
    check_cxx_symbol_exists(jpeg_crop_scanline "cstdio;jpeglib.h" DLIO_JPEG_IS_TURBO)
  endif()
  if(DLIO_JPEG_IS_TURBO)
    add_library(jpeg INTERFACE)
    target_link_libraries(jpeg INTERFACE JPEG::JPEG)
  endif()
  find_path(DEFLATE_INCLUDE_DIR libdeflate.h)
  find_library(DEFLATE_LIBRARY deflate)
  if(DEFLATE_INCLUDE_DIR AND DEFLATE_LIBRARY)
    add_library(deflate INTERFACE)
    target_include_directories(deflate INTERFACE ${DEFLATE_INCLUDE_DIR})
    target_link_libraries(deflate INTERFACE ${DEFLATE_LIBRARY})
  endif()
  if(TARGET jpeg)
    return()
  endif()
endif()

if("$ENV{DLIO_SYSTEM_JPEG}" STREQUAL "1" OR NOT EXISTS "${DLIO_SOURCES}")
  set(MISSING "dlio: libjpeg-turbo's headers are missing: apt-get install libjpeg62-turbo-dev (on Ubuntu: libjpeg-turbo8-dev).")
  # The leading blank keeps CMake from breaking the line.
  if("$ENV{DLIO_SYSTEM_JPEG}" MATCHES "^[01]$")
    message(FATAL_ERROR " ${MISSING} To build without them: leave DLIO_SYSTEM_JPEG out.")
  endif()
  message(WARNING " ${MISSING} Pillow will decode JPEGs.")
  return()
endif()

# Hidden: their names meet no other libjpeg or libdeflate of the process.
enable_language(C)
if(NOT TARGET deflate)
  file(GLOB DEFLATE_FILES "${DLIO_SOURCES}/libdeflate/lib/*.c" "${DLIO_SOURCES}/libdeflate/lib/*/*.c")
  add_library(deflate STATIC ${DEFLATE_FILES})
  set_target_properties(deflate PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_include_directories(deflate PUBLIC "${DLIO_SOURCES}/libdeflate")
endif()

include(ExternalProject)
set(JPEG_BINARY "${CMAKE_CURRENT_BINARY_DIR}/libjpeg-turbo")
set(JPEG_SETTINGS
  -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
  -DCMAKE_C_VISIBILITY_PRESET=hidden
  -DCMAKE_POLICY_VERSION_MINIMUM=3.5
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DENABLE_SHARED=OFF
  -DWITH_TURBOJPEG=OFF)
if("$ENV{DLIO_SYSTEM_JPEG}" STREQUAL "0")
  list(APPEND JPEG_SETTINGS -DREQUIRE_SIMD=ON)   # needs nasm on x86-64
endif()
if(CMAKE_CROSSCOMPILING)
  list(APPEND JPEG_SETTINGS
    -DCMAKE_SYSTEM_NAME=${CMAKE_SYSTEM_NAME} -DCMAKE_SYSTEM_PROCESSOR=${CMAKE_SYSTEM_PROCESSOR}
    -DCMAKE_AR=${CMAKE_AR} -DCMAKE_RANLIB=${CMAKE_RANLIB})
endif()
ExternalProject_Add(libjpeg-turbo
  SOURCE_DIR "${DLIO_SOURCES}/libjpeg-turbo"
  BINARY_DIR "${JPEG_BINARY}"
  CMAKE_ARGS ${JPEG_SETTINGS}
  BUILD_COMMAND "${CMAKE_COMMAND}" --build <BINARY_DIR> --target jpeg-static
  BUILD_BYPRODUCTS "${JPEG_BINARY}/libjpeg.a"
  INSTALL_COMMAND "")
add_library(jpeg INTERFACE)
add_dependencies(jpeg libjpeg-turbo)
target_include_directories(jpeg INTERFACE "${DLIO_SOURCES}/libjpeg-turbo" "${JPEG_BINARY}")
target_link_libraries(jpeg INTERFACE "${JPEG_BINARY}/libjpeg.a")
