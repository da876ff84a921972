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

// Reads at most `room` bytes of each file into `buffer`, one behind the other, until all are read, or fewer than `room`
// bytes of the buffer's `capacity` are left, or 5 ms have passed, or a signal comes. Returns those that were read;
// never waits for a pipe. The names are paths below `folder`, or absolute ones.
std::vector<FileRead> read_files(const char* folder, const Pieces& names, std::size_t room, char* buffer,
                                 std::size_t capacity);

// Reads ranges of a file, from `starts` on, to `buffer`, one behind the other; each comes at the sum of the sizes
// before it. `sizes` becomes what was read of each, which is less where the file ends. Returns how many ranges were
// read before one that the system refused, with `errno`.
std::size_t read_ranges(int descriptor, const std::int64_t* starts, std::int64_t* sizes, std::size_t count,
                        char* buffer) noexcept;

// Rows of `size` bytes each, in memory.
struct Rows {
  char* data;
  std::size_t size;
  const std::int64_t* numbers;  // which row each range is for

  char* row(std::size_t range) const noexcept { return data + static_cast<std::size_t>(numbers[range]) * size; }
};

// Reads a range of a file from each of `starts` into its row, those that are near each other by one read, and extends
// each of the CRC-32Cs by its range while that is in the processor's cache. Sets `sizes` to what was read of each.
// Returns how many ranges were read before one that the system refused, with `errno`.
std::size_t read_rows(int descriptor, const std::int64_t* starts, std::size_t count, const Rows& rows,
                      std::int64_t* sizes, std::uint32_t* crcs) noexcept;

// Closes a file that was left open.
void close_file(const FileRead& file) noexcept;

}  // namespace dlio
