#include <nanobind/nanobind.h>
#include <cstdio>
#include <jpeglib.h>
NB_MODULE(_jpeg, m) { m.attr("libjpeg_version") = LIBJPEG_TURBO_VERSION_NUMBER; }
