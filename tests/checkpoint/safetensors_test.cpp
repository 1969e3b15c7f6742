#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// A file with this header and `bytes` zero bytes of tensors.
std::string file_of(const std::string& header, size_t bytes) {
  const uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + std::string(bytes, '\0');
}

TEST(Safetensors, ReadsBackTheWrittenTensors) {
  const Scratch scratch;
  std::vector<float> a(6);
  std::vector<int32_t> b = {7, -8};
  for (size_t i = 0; i < a.size(); ++i) a[i] = float(i) / 4;
  checkpoint::write_safetensors(scratch.path("x"),
                                {{"a", {2, 3}, Tensor(a.data(), DType::fp32, {2, 3}, MemoryKind::host)},
                                 {"b", {2}, Tensor(b.data(), DType::int32, {2}, MemoryKind::host)}},
                                {{"format", "pt"}});
  const checkpoint::SafetensorsFile file(scratch.path("x"));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors().at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.tensors().at("b").dtype, DType::int32);
  std::vector<float> two(2);
  file.read("a", 4 * sizeof(float), std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(two, (std::vector<float>{1, 1.25}));
  std::vector<int32_t> again(2);
  file.read("b", 0, std::as_writable_bytes(std::span(again)));
  EXPECT_EQ(again, b);
}

TEST(Safetensors, BytesOfNoTensorOrOfTwoAreRejected) {
  const Scratch scratch;
  const auto refused = [&](const std::string& bytes, std::string_view word) {
    const std::string path = scratch.write("x", bytes);
    expect_error(Exit::checkpoint, {path, "damaged or not a safetensors file", word},
                 [&] { checkpoint::SafetensorsFile file(path); });
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_NO_THROW(checkpoint::SafetensorsFile(scratch.write("x", file_of(good, 8))));
  refused("", "shorter than 8 bytes");
  refused("1234567", "shorter than 8 bytes");
  refused(file_of(good, 8).substr(0, 30), "the header has");
  refused(std::string(8, '\xff') + good, "the header has");
  refused(file_of("[]", 0), "not a JSON object");
  refused(file_of("{\"a\" 1}", 0), "the header:1:6: it is not JSON");
  refused(file_of(good.substr(0, good.size() - 1) + "," + good.substr(1), 8), "duplicate key 'a'");
  refused(file_of(good, 7), "tensor 'a' is at bytes 0 to 8 of 7");
  refused(file_of(good, 9), "8 bytes, but the file has 9");
  const auto with = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  refused(file_of(with("F7", "[2]", "[0,8]"), 8), "type 'F7'");
  refused(file_of(with("F32", "[3]", "[0,8]"), 8), " is at bytes 0 to 8");
  refused(file_of(with("F32", "[-2]", "[0,8]"), 8), "impossible shape");
  refused(file_of(with("F32", "[4294967296,4294967296,4]", "[0,8]"), 8), "impossible shape");
  refused(file_of(with("F32", "[2]", "[8,0]"), 8), " is at bytes 8 to 0");
  refused(file_of(with("F32", "[2]", "[1,9]"), 9), "hole or overlap at byte 0");
  refused(file_of(with("F32", "[2]", "[0]"), 8), "a part of a tensor is missing in the header");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "a part of a tensor is missing in the header");
  refused(file_of(R"({"a":5})", 8), "a part of a tensor is missing in the header");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                  12),
          "hole or overlap at byte 8");
}

TEST(Safetensors, ReadingAMissingTensorIsRejected) {
  const Scratch scratch;
  const checkpoint::SafetensorsFile file(
      scratch.write("x", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)));
  std::vector<std::byte> bytes(8);
  expect_error(Exit::checkpoint, {": the tensor 'b'"}, [&] { file.read("b", 0, bytes); });
  expect_error(Exit::internal, {"8 bytes at 1 of a"}, [&] { file.read("a", 1, bytes); });
}

}  // namespace
}  // namespace cleave::testing
