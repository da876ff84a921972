# Finds libjpeg-turbo: the target `jpeg`. Read by CMakeLists.txt.
#
# The environment's DLIO_SYSTEM_JPEG decides which. Not set: the system's if its headers are there, else the sources in
# packaging/libjpeg-turbo, which a source distribution has. 1: the system's only, for distributions. 0: those sources
# only, with their SIMD code, for wheels.
set(DLIO_JPEG_SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/packaging/libjpeg-turbo")
add_library(jpeg INTERFACE)

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
    target_link_libraries(jpeg INTERFACE JPEG::JPEG)
    return()
  endif()
endif()

if("$ENV{DLIO_SYSTEM_JPEG}" STREQUAL "1" OR NOT EXISTS "${DLIO_JPEG_SOURCE}/jpeglib.h")
  # The leading blank keeps CMake from breaking the line.
  message(FATAL_ERROR " dlio: libjpeg-turbo's headers are missing: apt-get install libjpeg62-turbo-dev (on Ubuntu: libjpeg-turbo8-dev). To install without the compiled core: pip install . -C wheel.cmake=false")
endif()

enable_language(C)
include(ExternalProject)
set(DLIO_JPEG_BINARY "${CMAKE_CURRENT_BINARY_DIR}/libjpeg-turbo")
set(DLIO_JPEG_ARCHIVE "${DLIO_JPEG_BINARY}/libjpeg.a")
set(DLIO_JPEG_SETTINGS
  -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
  -DCMAKE_C_VISIBILITY_PRESET=hidden   # its names meet nobody else's libjpeg
  -DCMAKE_POLICY_VERSION_MINIMUM=3.5
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DENABLE_SHARED=OFF
  -DWITH_TURBOJPEG=OFF)
if("$ENV{DLIO_SYSTEM_JPEG}" STREQUAL "0")
  list(APPEND DLIO_JPEG_SETTINGS -DREQUIRE_SIMD=ON)   # needs nasm on x86-64
endif()
if(CMAKE_CROSSCOMPILING)
  list(APPEND DLIO_JPEG_SETTINGS
    -DCMAKE_SYSTEM_NAME=${CMAKE_SYSTEM_NAME} -DCMAKE_SYSTEM_PROCESSOR=${CMAKE_SYSTEM_PROCESSOR}
    -DCMAKE_AR=${CMAKE_AR} -DCMAKE_RANLIB=${CMAKE_RANLIB})
endif()
ExternalProject_Add(libjpeg-turbo
  SOURCE_DIR "${DLIO_JPEG_SOURCE}"
  BINARY_DIR "${DLIO_JPEG_BINARY}"
  CMAKE_ARGS ${DLIO_JPEG_SETTINGS}
  BUILD_COMMAND "${CMAKE_COMMAND}" --build <BINARY_DIR> --target jpeg-static
  BUILD_BYPRODUCTS "${DLIO_JPEG_ARCHIVE}"
  INSTALL_COMMAND "")
add_dependencies(jpeg libjpeg-turbo)
target_include_directories(jpeg INTERFACE "${DLIO_JPEG_SOURCE}" "${DLIO_JPEG_BINARY}")
target_link_libraries(jpeg INTERFACE "${DLIO_JPEG_ARCHIVE}")
