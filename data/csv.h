// The UCI handwritten digits (Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", 1998) from a
// csv, plain or gzipped: the smallest real data set on which a classifier's accuracy means something.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::data {

struct Digits {
  static constexpr int64_t kFeatures = 64;  // 8 x 8 pixels
  static constexpr int64_t kClasses = 10;

  std::vector<float> features;  // [rows, kFeatures], the file's 0 to 16 divided by 16
  std::vector<int32_t> labels;  // [rows]

  int64_t rows() const { return int64_t(labels.size()); }
};

struct DigitsSplit {
  Digits train, test;
};

// Rows of kFeatures integers 0 to 16 and a label 0 to 9, separated by commas. Throws Error(data) naming
// file:line.
Digits read_digits(const std::string& path);

// Every 5th row (the 5th, 10th, ...) is test, the others train, both in order.
DigitsSplit split_digits(const Digits& digits);

}  // namespace cleave::data
