// Loops over rows, shared among threads where that pays.

#pragma once

#include "team.h"
#include "vectors.h"

namespace {

// Calls function(row) for each row; several threads where rows hold so many numbers that waking them pays.
template <typename Function>
void by_rows(int64_t rows, int64_t width, int64_t threads, const Function& function) {
  const int64_t some = std::max<int64_t>(1, SERIAL_BYTES / int64_t(width * sizeof(bf16)) / 4);
  if (rows * width * int64_t{sizeof(bf16)} <= SERIAL_BYTES) threads = 1;
  team::run((rows + some - 1) / some, threads, [&](int64_t part) {
    for (int64_t row = part * some; row < std::min(rows, (part + 1) * some); row++) function(row);
  });
}

}  // namespace
