// Many small files, each by one open, one read and one close; and many ranges of one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pieces.hpp"

namespace dlio {

struct FileRead {
  int error = 0;        // of the system; 0 where the file was read
  int descriptor = -1;  // of a file left open: it is empty, or has `room` bytes or more, or is no plain file
  std::size_t size = 0;
};

// Reads at most `room` bytes of each file into `buffer`, one after another, until all are read, or fewer than `room`
// bytes of the buffer's `capacity` are left, or 5 ms have passed, or a signal comes. Returns those that were read;
// never waits for a pipe. The names are paths below `folder`, or absolute ones.
std::vector<FileRead> read_files(const char* folder, const Pieces& names, std::size_t room, char* buffer,
                                 std::size_t capacity);

// Ranges of files, and where each goes in memory.
struct Ranges {
  const std::int64_t* descriptors;
  const std::int64_t* starts;
  const std::int64_t* sizes;
  const std::int64_t* places;
  std::size_t count;

  std::int64_t end(std::size_t range) const noexcept { return starts[range] + sizes[range]; }
  int descriptor(std::size_t range) const noexcept { return static_cast<int>(descriptors[range]); }
  std::size_t size(std::size_t range) const noexcept { return static_cast<std::size_t>(sizes[range]); }
};

// Reads each range to its place in `out`, those that are near each other in a file by one read. Sets `counts` to what
// was read of each, which is less where the file ends. Extends each of the CRC-32Cs, unless they are null, by what was
// read while that is in the processor's cache. Returns how many ranges were read before one that the system refused,
// with `errno`.
std::size_t read_ranges(const Ranges& ranges, char* out, std::int64_t* counts, std::uint32_t* crcs) noexcept;

// Closes a file that was left open.
void close_file(const FileRead& file) noexcept;

}  // namespace dlio
