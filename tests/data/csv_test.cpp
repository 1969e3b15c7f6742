#include "data/csv.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/scratch.h"

namespace cleave::data {
namespace {

std::string row(int pixel, std::string_view last) {
  std::string text;
  for (int i = 0; i < 64; ++i) text += fmt::format("{},", (pixel + i) % 17);
  return text.append(last).append("\n");
}
std::string row(int pixel, int label) { return row(pixel, std::to_string(label)); }

std::string gzip(const Scratch& scratch, const std::string& name, const std::string& text) {
  const std::string path = scratch.path(name);
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), unsigned(text.size()));
  gzclose(file);
  return path;
}

TEST(Csv, ReadsPlainAndGzippedDigits) {
  const Scratch scratch;
  const std::string text = row(0, 3) + row(16, 9);
  const Digits plain = read_digits(scratch.write("d.csv", text));
  ASSERT_EQ(plain.rows(), 2);
  EXPECT_EQ(plain.labels, (std::vector<int32_t>{3, 9}));
  ASSERT_EQ(plain.features.size(), 128u);
  EXPECT_EQ(plain.features[0], 0.0f);
  EXPECT_EQ(plain.features[1], 0.0625f);
  EXPECT_EQ(plain.features[16], 1.0f);
  EXPECT_EQ(plain.features[64], 1.0f);
  const Digits packed = read_digits(gzip(scratch, "d.csv.gz", text));
  EXPECT_EQ(packed.features, plain.features);
  EXPECT_EQ(packed.labels, plain.labels);
}

TEST(Csv, AcceptsOtherLineEnds) {
  const Scratch scratch;
  std::string text = row(1, 2) + row(2, 4);
  text.pop_back();
  EXPECT_EQ(read_digits(scratch.write("a.csv", text)).rows(), 2);
  EXPECT_EQ(read_digits(scratch.write("b.csv", row(1, "2\r").append("\r\n"))).labels,
            (std::vector<int32_t>{2}));
}

TEST(Csv, NamesFileAndLineOfABadRow) {
  const Scratch scratch;
  auto refuse = [&](const std::string& bad, std::initializer_list<std::string_view> parts) {
    const auto path = scratch.write("d.csv", row(0, 1) + bad);
    expect_error(Exit::data, {path + ":2: "}, [&] { read_digits(path); });
    expect_error(Exit::data, parts, [&] { read_digits(path); });
  };
  const std::string good = row(0, 1);
  auto with_first = [&](std::string_view field) { return std::string(field).append(good, 1); };
  refuse("1,2,3\n", {"3 columns", "65"});
  refuse(with_first("5,0"), {"66 columns"});
  refuse(with_first("17"), {"column 1 is '17'", "0 to 16"});
  refuse(with_first("-1"), {"column 1 is '-1'"});
  refuse(with_first("x"), {"column 1 is 'x'"});
  refuse(with_first("1.5"), {"column 1 is '1.5'"});
  refuse(good.substr(1), {"column 1 is ''"});
  refuse(row(0, "10"), {"column 65 is '10'", "0 to 9"});
  refuse(row(0, ""), {"column 65 is ''"});
}

TEST(Csv, NamesTheFaultOfTheFile) {
  const Scratch scratch;
  const auto missing = scratch.path("none.csv");
  expect_error(Exit::data, {missing, "No such file"}, [&] { read_digits(missing); });
  expect_error(Exit::data, {"is a directory"}, [&] { read_digits(scratch.path("")); });
  expect_error(Exit::data, {"has no rows"}, [&] { read_digits(scratch.write("e.csv", "")); });
  std::string text;
  for (int i = 0; i < 200; ++i) text += row(i * 7, i % 10);
  gzip(scratch, "d.csv.gz", text);
  const std::string packed = scratch.read("d.csv.gz");
  expect_error(Exit::data, {"t.csv.gz", "decompressed", "damaged"}, [&] {
    read_digits(scratch.write("t.csv.gz", std::string_view(packed).substr(0, packed.size() / 2)));
  });
}

TEST(Csv, EveryFifthRowIsTest) {
  Digits digits;
  for (int i = 0; i < 12; ++i) {
    digits.labels.push_back(i);
    digits.features.insert(digits.features.end(), 64, float(i));
  }
  const DigitsSplit split = split_digits(digits);
  EXPECT_EQ(split.test.labels, (std::vector<int32_t>{4, 9}));
  EXPECT_EQ(split.train.labels, (std::vector<int32_t>{0, 1, 2, 3, 5, 6, 7, 8, 10, 11}));
  EXPECT_EQ(split.test.features[64], 9.0f);
  EXPECT_EQ(split.train.features.size(), 640u);
}

}  // namespace
}  // namespace cleave::data
