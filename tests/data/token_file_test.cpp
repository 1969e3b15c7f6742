#include "data/token_file.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/scratch.h"

namespace cleave::data {
namespace {

using Kind = TokenFile::Kind;
using Format = TokenFile::Format;

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += char(value >> (8 * i));
  return out;
}

std::string llmc(uint32_t magic, uint32_t version, uint32_t count, std::string_view tokens) {
  std::string out = little_endian(magic, 4) + little_endian(version, 4) + little_endian(count, 4);
  out.resize(1024);
  return out + std::string(tokens);
}

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(size_t(file.size()));
  file.read({0, file.size()}, tokens.data());
  return tokens;
}

TEST(TokenFile, WritesTheBytesOfLlmc) {
  const Scratch scratch;
  write_llmc(scratch.path("a.bin"), std::vector<int32_t>{50256, 1, 2});
  const std::string bytes = scratch.read("a.bin");
  ASSERT_EQ(bytes.size(), 1030u);
  EXPECT_EQ(bytes.substr(0, 16), std::string("\x88\xd8\x34\x01\x01\0\0\0\x03\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(bytes.find_first_not_of('\0', 16), 1024u);
  EXPECT_EQ(bytes.substr(1024), std::string("\x50\xc4\x01\0\x02\0", 6));
  EXPECT_FALSE(std::filesystem::exists(scratch.path("a.bin.partial")));
}

TEST(TokenFile, ReadsTheBytesOfLlmc) {
  const Scratch scratch;
  const TokenFile file(
      scratch.write("a.bin", llmc(20240520, 1, 3, std::string_view("\x50\xc4\x01\0\x02\0", 6))));
  EXPECT_EQ(file.kind(), Kind::llmc_u16);
  EXPECT_EQ(file.vocab(), 50257);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{50256, 1, 2}));
  EXPECT_NE(file.describe().find("3 tokens, llm.c uint16, vocabulary 50257"), std::string::npos)
      << file.describe();
}

TEST(TokenFile, TheVocabularyIsStoredInTheHeader) {
  const Scratch scratch;
  write_llmc(scratch.path("a.bin"), std::vector<int32_t>{255, 0}, 256);
  EXPECT_EQ(scratch.read("a.bin").substr(8, 8), little_endian(2, 4) + little_endian(256, 4));
  EXPECT_EQ(TokenFile(scratch.path("a.bin")).vocab(), 256);
  EXPECT_EQ(TokenFile(scratch.path("a.bin"), {.format = Format::detect, .vocab = 300}).vocab(), 300);
  write_llmc(scratch.path("b.bin"), std::vector<int32_t>{1}, 151936);
  EXPECT_EQ(TokenFile(scratch.path("b.bin")).kind(), Kind::llmc_u32);
  EXPECT_EQ(TokenFile(scratch.path("b.bin")).vocab(), 151936);
  expect_error(Exit::data, {"token 0 is 9", "vocabulary of 9"},
               [&] { write_llmc(scratch.path("c.bin"), std::vector<int32_t>{9}, 9); });
  std::string bad = llmc(20240520, 1, 1, std::string_view("\x01\0", 2));
  bad.replace(12, 4, little_endian(0xFFFFFFFF, 4));
  expect_error(Exit::data, {": invalid vocabulary size -1"}, [&] { TokenFile(scratch.write("d.bin", bad)); });
}

TEST(TokenFile, WideIdsAreWrittenAndReadAsThe32BitKind) {
  const Scratch scratch;
  const std::vector<int32_t> tokens{128000, 7, 50257};
  write_llmc(scratch.path("a.bin"), tokens);
  const std::string bytes = scratch.read("a.bin");
  EXPECT_EQ(bytes.substr(0, 12), little_endian(20240801, 4) + little_endian(7, 4) + little_endian(3, 4));
  EXPECT_EQ(bytes.size(), 1024u + 12u);
  const TokenFile file(scratch.path("a.bin"));
  EXPECT_EQ(file.kind(), Kind::llmc_u32);
  EXPECT_EQ(file.vocab(), 128256);
  EXPECT_EQ(all_tokens(file), tokens);
}

TEST(TokenFile, TheLargestGpt2TokenStaysNarrowAndTheNextIsWide) {
  const Scratch scratch;
  write_llmc(scratch.path("a.bin"), std::vector<int32_t>{50256});
  write_llmc(scratch.path("b.bin"), std::vector<int32_t>{50257});
  EXPECT_EQ(TokenFile(scratch.path("a.bin")).kind(), Kind::llmc_u16);
  EXPECT_EQ(TokenFile(scratch.path("b.bin")).kind(), Kind::llmc_u32);
}

TEST(TokenFile, ABinWithoutMagicIsHeaderlessUint16) {
  const Scratch scratch;
  const TokenFile file(scratch.write("train.bin", std::string_view("\x01\0\xff\xff\x34\x12", 6)));
  EXPECT_EQ(file.kind(), Kind::u16);
  EXPECT_EQ(file.vocab(), 65536);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{1, 65535, 0x1234}));
  const TokenFile other(scratch.write("tokens", std::string_view("\x02\0", 2)), {.format = Format::u16});
  EXPECT_EQ(other.at(0), 2);
}

// Ids of a uint32 file are uint16 values with zeros or ones between them.
TEST(TokenFile, WithoutAHeaderTheWidthFollowsFromTheVocabulary) {
  const Scratch scratch;
  std::string narrow, wide;
  for (int i = 0; i < 3000; ++i) narrow += little_endian(uint64_t(i) * 17 % 50000, 2);
  for (int i = 0; i < 3000; ++i) wide += little_endian(uint64_t(i) * 7919 % 100000, 4);
  const std::string a = scratch.write("a.bin", narrow), b = scratch.write("b.bin", wide);
  for (const int64_t vocab : {0, 50257, 128256}) {
    EXPECT_EQ(TokenFile(a, {.vocab = vocab}).kind(), Kind::u16);
    EXPECT_EQ(TokenFile(a, {.bound = vocab}).kind(), Kind::u16);
  }
  for (const int64_t vocab : {0, 128256})
    expect_error(Exit::usage, {b, "ambiguous", "--token_bytes 2 or --token_bytes 4"},
                 [&] { TokenFile(b, {.bound = vocab}); });
  EXPECT_EQ(TokenFile(b, {.vocab = 50257}).kind(), Kind::u16);  // neither fits: reading names the id
  const TokenFile chosen(b, {.token_bytes = 4, .vocab = 128256});
  EXPECT_EQ(chosen.kind(), Kind::u32);
  EXPECT_EQ(chosen.size(), 3000);
  EXPECT_EQ(chosen.at(13), 13 * 7919 % 100000);
  EXPECT_EQ(TokenFile(b, {.token_bytes = 4}).vocab(), TokenFile::kUnknownVocab);
  EXPECT_EQ(TokenFile(b, {.token_bytes = 2}).size(), 6000);
  expect_error(Exit::data, {"4 bytes per token"},
               [&] { TokenFile(scratch.write("c.bin", wide.substr(2)), {.token_bytes = 4}); });
}

TEST(TokenFile, ATextIsItsBytes) {
  const Scratch scratch;
  const TokenFile file(scratch.write("corpus.txt", "ab\xff\n"));
  EXPECT_EQ(file.kind(), Kind::bytes);
  EXPECT_EQ(file.vocab(), 256);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{'a', 'b', 255, '\n'}));
  EXPECT_EQ(file.at(1), 'b');
  int32_t middle[2];
  file.read({1, 3}, middle);
  EXPECT_EQ(middle[0], 'b');
  EXPECT_EQ(middle[1], 255);
}

TEST(TokenFile, BytesOnRequestIgnoreNameAndMagic) {
  const Scratch scratch;
  const TokenFile file(scratch.write("odd.bin", "\x1f\x8bz"), {.format = Format::bytes});
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{0x1f, 0x8b, 'z'}));
}

TEST(TokenFile, ReadingPastTheEndIsAnInternalError) {
  const Scratch scratch;
  const TokenFile file(scratch.write("a.txt", "abc"));
  int32_t out[4];
  expect_error(Exit::internal, {"[1, 4) of 3"}, [&] { file.read({1, 4}, out); });
  expect_error(Exit::internal, {"of 3"}, [&] { file.at(-1); });
}

TEST(TokenFile, AnIdAboveTheVocabularyIsNamedWithItsPosition) {
  const Scratch scratch;
  const auto path =
      scratch.write("a.bin", llmc(20240520, 1, 3, std::string_view("\x50\xc4\x51\xc4\x02\0", 6)));
  const TokenFile file(path);
  EXPECT_EQ(file.at(0), 50256);
  int32_t out[3];
  expect_error(Exit::data, {path, "token 1 is 50257", "50257 entries", "tokenize"}, [&] {
    file.read({0, 3}, out);
  });
}

TEST(TokenFile, TheVocabularyOfTheModelOverridesTheFormat) {
  const Scratch scratch;
  const auto path = scratch.write("a.txt", "a\x80");
  expect_error(Exit::data, {"token 1 is 128"}, [&] { TokenFile(path, {.vocab = 128}).at(1); });
  const auto wide = scratch.write("a.bin", llmc(20240801, 7, 1, little_endian(151000, 4)));
  expect_error(Exit::data, {"token 0 is 151000"}, [&] { TokenFile(wide).at(0); });
  EXPECT_EQ(TokenFile(wide, {.vocab = 151936}).at(0), 151000);
  const auto huge = scratch.write("b.bin", llmc(20240801, 7, 1, little_endian(0xfffffff0u, 4)));
  expect_error(Exit::data, {"token 0 is 4294967280"}, [&] { TokenFile(huge).at(0); });
}

TEST(TokenFile, NamesTheFaultOfThePath) {
  const Scratch scratch;
  const auto missing = scratch.path("none.txt");
  expect_error(Exit::data, {missing, "No such file"}, [&] { TokenFile{missing}; });
  expect_error(Exit::data, {"is a directory; name one file in it"}, [&] { TokenFile{scratch.path("")}; });
  expect_error(Exit::data, {"a.bin", "is empty"}, [&] { TokenFile{scratch.write("a.bin", "")}; });
  expect_error(Exit::data, {"not a regular file"}, [] { TokenFile{"/dev/null"}; });
}

TEST(TokenFile, NamesTheDamageOfATokenFile) {
  const Scratch scratch;
  auto refuse = [&](std::string_view bytes, std::initializer_list<std::string_view> parts) {
    const auto path = scratch.write("a.bin", bytes);
    expect_error(Exit::data, {path}, [&] { TokenFile{path}; });
    expect_error(Exit::data, parts, [&] { TokenFile{path}; });
  };
  const std::string good = llmc(20240520, 1, 3, std::string_view("\1\0\2\0\3\0", 6));
  refuse(good.substr(0, 1028), {"1028 bytes", "counts 3 tokens", "1030", "truncated"});
  refuse(good + "xx", {"too long"});
  refuse(good.substr(0, 700), {"truncated", "1024"});
  refuse(llmc(20240520, 2, 3, ""), {"version 2", "only version 1"});
  refuse(llmc(20240801, 1, 3, ""), {"version 1", "only version 7"});
  refuse(llmc(20240520, 1, 0, ""), {"invalid token count 0"});
  refuse(llmc(20240520, 1, 0x80000000u, ""), {"invalid token count -2147483648"});
  refuse(llmc(20240326, 3, 0, ""), {"an llm.c model"});
  refuse(llmc(20240522, 1, 3, ""), {"evaluation set"});
  refuse("abc", {": 3 bytes are not divisible by", "2 bytes per token"});
  refuse(std::string_view("MMIDIDX\0\0", 9), {"Megatron"});
}

// Each file starts like those of real programs.
TEST(TokenFile, RefusesByNameWhatIsNeitherTextNorTokens) {
  const Scratch scratch;
  using namespace std::literals;
  const std::string tar = std::string(257, 'a') + "ustar";
  struct {
    const char* name;
    std::string_view bytes;
    const char *what, *advice;
  } cases[] = {
      {"a", "PAR1\x15\x04"sv, "a Parquet file", "to_json"},
      {"a.txt", "ARROW1\0\0"sv, "an Arrow file", "to_json"},
      {"a.csv", "id,text\n1,abc\n"sv, "a table", "to_json"},
      {"A.TSV", "id\ttext\n"sv, "a table", ".jsonl"},
      {"a.json", "[{\"text\": \"abc\"}]"sv, "one JSON value", ".jsonl"},
      {"b.json", "{\"text\": \"abc\"}\n{\"text\": \"abc\"}\n"sv, "a JSON object on each line", ".jsonl"},
      {"c.txt", "\xEF\xBB\xBF{\"text\": \"abc\"}\n"sv, "a JSON object on each line", ".jsonl"},
      {"a.npy", "\x93NUMPY\1\0v\0{'descr'"sv, "an array of numpy", "tofile"},
      {"a.docx", "PK\3\4\x14\0"sv, "a zip archive", "unpack"},
      {"a.zst", "\x28\xB5\x2F\xFD$"sv, "compressed with zstd", "unzstd"},
      {"a.xz", "\xFD\x37zXZ\0"sv, "compressed with xz", "unxz"},
      {"a.bz2", "BZh91AY"sv, "compressed with bzip2", "bunzip2"},
      {"a.tar", tar, "a tar archive", "unpack"},
      {"a.pdf", "%PDF-1.7\n"sv, "a PDF", ".txt"},
      {"a.db", "SQLite format 3\0\x10"sv, "an SQLite data base", ".jsonl"},
      {"a.h5", "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", ".jsonl"},
      {"a.safetensors", "\x40\1\0\0\0\0\0\0{\"wte\":{"sv, "a safetensors file", "--model"},
      {"a.gguf", "GGUF\3\0\0\0"sv, "a model in GGUF", "--model"},
      {"a.pkl", "\x80\4\x95\x0b\0"sv, "a pickle", ".jsonl"},
      {"a.txt",
       "\xFF\xFE"
       "a\0b\0"sv,
       "in UTF-16", "iconv"},
      {"b.txt", "a\0 \0t\0e\0x\0t\0 \0i\0n\0 \0i\0t\0"sv, "in UTF-16", "iconv"},
      {"a.png", "\x89PNG\r\n\x1a\n"sv, "a PNG image", "give a text"},
      {"a.jpg", "\xFF\xD8\xFF\xE0"sv, "a JPEG image", "give a text"},
      {"a.webp", "RIFF\x24\0\0\0WEBPVP8 "sv, "a WebP image", "give a text"},
      {"a.mp4",
       "\0\0\0\x20"
       "ftypisom"sv,
       "a video", "give a text"}};
  for (const auto& c : cases)
    expect_error(Exit::data, {scratch.path(c.name), c.what, c.advice},
                 [&] { TokenFile{scratch.write(c.name, c.bytes)}; });
}

TEST(TokenFile, TakesTextsWithUnusualStarts) {
  const Scratch scratch;
  for (const std::string_view text :
       {"{ a brace", "PART 1", "see the WEBPage", "an {\"aside\"}", "{\"said\" he\nand went", "GIF89",
        "\xC3\xA4 umlaut", "a.b,c\n1,2\n", "[1]"})
    EXPECT_EQ(TokenFile(scratch.write("a.txt", text)).kind(), Kind::bytes) << text;
  EXPECT_EQ(TokenFile(scratch.write("a.jsonl", "{\"text\": \"abc\"}\n")).size(), 16);
}

TEST(TokenFile, RejectsBinaryFiles) {
  const Scratch scratch;
  expect_error(Exit::data, {"compressed with gzip", "gunzip"},
               [&] { TokenFile{scratch.write("a.txt.gz", "\x1f\x8b\x08")}; });
  expect_error(Exit::data, {"starts with", "20240520"},
               [&] { TokenFile(scratch.write("a.txt", "some text"), {.format = Format::llmc}); });
}

TEST(TokenFile, RejectsTokensThatCannotBeReadBack) {
  const Scratch scratch;
  const std::vector<int32_t> none, negative{1, -1}, one{1};
  expect_error(Exit::data, {"no tokens"}, [&] { write_llmc(scratch.path("a.bin"), none); });
  expect_error(Exit::data, {"token 1 is -1"}, [&] { write_llmc(scratch.path("a.bin"), negative); });
  const auto nowhere = scratch.path("none/a.bin");
  expect_error(Exit::data, {nowhere, "No such file"}, [&] { write_llmc(nowhere, one); });
  std::filesystem::create_directory(scratch.path("taken"));
  expect_error(Exit::data, {"taken"}, [&] { write_llmc(scratch.path("taken"), one); });
  EXPECT_FALSE(std::filesystem::exists(scratch.path("taken.partial")));
}

TEST(TokenFile, TruncatedOrReplacedWhileOpenIsAnErrorWithoutASignal) {
  const Scratch scratch;
  const auto path = scratch.write("a.txt", std::string(100'000, 'a'));
  const TokenFile file(path);
  std::vector<int32_t> out(100'000);
  file.require_unchanged();
  file.read({0, 100'000}, out.data());
  std::filesystem::resize_file(path, 5000);
  expect_error(Exit::data, {path, "byte 5000", "100000", "truncated during the run"}, [&] {
    file.read({0, 100'000}, out.data());
  });
  EXPECT_EQ(file.at(4999), 'a');
  expect_error(Exit::data, {path, "has 5000 bytes"}, [&] { file.require_unchanged(); });
  const TokenFile second(path);
  std::filesystem::rename(scratch.write("b.txt", std::string(5000, 'b')), path);
  EXPECT_EQ(second.at(0), 'a');
  expect_error(Exit::data, {path, "replaced"}, [&] { second.require_unchanged(); });
  const TokenFile third(path);
  std::filesystem::remove(path);
  expect_error(Exit::data, {path, "no longer exists"}, [&] { third.require_unchanged(); });
}

TEST(TokenFile, CheckAllFindsASingleIdThatIsTooLarge) {
  const Scratch scratch;
  std::string bytes(300'000, '\1');
  bytes[2 * 140'001] = 9;
  const TokenFile file(scratch.write("a.bin", bytes), {.vocab = 260});
  expect_error(Exit::data, {"token 140001 is 265", "260 entries"}, [&] { file.check_all(); });
  TokenFile(scratch.write("b.bin", bytes), {.vocab = 300}).check_all();
  expect_error(Exit::data, {"token 3 is 200"},
               [&] { TokenFile(scratch.write("c.txt", "abc\xc8"), {.vocab = 200}).check_all(); });
}

}  // namespace
}  // namespace cleave::data
