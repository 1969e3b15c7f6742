// Reads the UCI handwritten digits (Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", 1998)
// from a csv, plain or gzipped: the smallest real data set with a meaningful accuracy of a classifier.
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

// Reads rows of kFeatures integers 0 to 16 and a label 0 to 9, separated by commas. Throws Error(data) with
// file:line.
Digits read_digits(const std::string& path);

// Selects every 5th row (the 5th, 10th, ...) for testing and the others for training, both in order.
DigitsSplit split_digits(const Digits& digits);

}  // namespace cleave::data
