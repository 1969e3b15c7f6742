#include "data/indexed_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "data/token_file.h"
#include "tests/scratch.h"

namespace cleave::data {
namespace {

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out += char(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

// Documents [5, 6, 7] and [8, 9], written with the Python standard library from Megatron's description.
const std::string kGoldenBin = from_hex("05000600070008000900");
const std::string kGoldenIdx = from_hex(
    "4d4d4944494458000001000000000000000802000000000000000300000000000000030000000200000000000000000000000600"
    "000000000000000000000000000001000000000000000200000000000000");

template <class T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class T>
void add(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An index by the description of the format, from lengths of sequences and first sequences of documents.
std::string index_of(uint8_t code, int64_t token_bytes, const std::vector<int32_t>& lengths,
                     const std::vector<int64_t>& documents) {
  std::string out("MMIDIDX\0\0", 9);
  add(out, uint64_t{1}), add(out, code), add(out, uint64_t(lengths.size())),
      add(out, uint64_t(documents.size()));
  for (int32_t length : lengths) add(out, length);
  int64_t pointer = 0;
  for (int32_t length : lengths) add(out, pointer), pointer += length * token_bytes;
  for (int64_t document : documents) add(out, document);
  return out;
}

std::vector<int32_t> tokens_of(const TokenFile& file) {
  std::vector<int32_t> tokens(size_t(file.size()));
  file.read({0, file.size()}, tokens.data());
  return tokens;
}

struct Golden {
  Scratch scratch;
  std::string bin = scratch.write("a.bin", kGoldenBin), idx = scratch.write("a.idx", kGoldenIdx);
};

TEST(IndexedFile, ReadsTheBytesOfMegatron) {
  const Golden golden;
  for (const char* name : {"a", "a.bin", "a.idx"}) {
    const TokenFile file(golden.scratch.path(name));
    EXPECT_EQ(file.kind(), TokenFile::Kind::indexed);
    EXPECT_EQ(tokens_of(file), (std::vector<int32_t>{5, 6, 7, 8, 9}));
    EXPECT_TRUE(file.vocab_is_a_guess());
    EXPECT_EQ(file.vocab(), 65536);
    EXPECT_FALSE(file.masked());
    const DocumentIndex& documents = *file.documents();
    ASSERT_EQ(documents.documents(), 2);
    EXPECT_EQ(documents.document(0), (Range{0, 3}));
    EXPECT_EQ(documents.document(1), (Range{3, 5}));
    EXPECT_NE(file.describe().find("5 tokens in 2 documents, Megatron uint16"), std::string::npos);
  }
}

TEST(IndexedFile, WritesTheBytesOfMegatron) {
  const Scratch scratch;
  IndexedWriter writer(scratch.path("a"), 10);
  writer.append(std::vector<int32_t>{5, 6});
  writer.append(std::vector<int32_t>{7});
  writer.end_document();
  writer.end_document();  // of an empty document
  writer.append(std::vector<int32_t>{8, 9});
  EXPECT_EQ(writer.documents(), 1);
  EXPECT_EQ(writer.tokens(), 5);
  EXPECT_FALSE(std::filesystem::exists(scratch.path("a.bin")));
  EXPECT_FALSE(std::filesystem::exists(scratch.path("a.idx")));
  writer.finish();
  EXPECT_EQ(scratch.read("a.bin"), kGoldenBin);
  EXPECT_EQ(scratch.read("a.idx"), kGoldenIdx);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.folder()), {}), 2);
}

TEST(IndexedFile, AVocabularyOf65500NeedsInt32) {
  const Scratch scratch;
  for (const int64_t vocab : {65499, 65500}) {
    IndexedWriter writer(scratch.path("a.bin"), vocab);
    writer.append(std::vector<int32_t>{int32_t(vocab - 1), 0});
    writer.finish();
    const TokenFile file(scratch.path("a.bin"), {.vocab = vocab});
    EXPECT_EQ(file.documents()->type(), vocab < 65500 ? DocumentIndex::Type::u16 : DocumentIndex::Type::i32);
    EXPECT_EQ(tokens_of(file), (std::vector<int32_t>{int32_t(vocab - 1), 0}));
  }
  EXPECT_EQ(TokenFile(scratch.path("a")).vocab(), TokenFile::kUnknownVocab);
}

TEST(IndexedFile, AMaskHasOneBitPerToken) {
  const Scratch scratch;
  {
    IndexedWriter writer(scratch.path("a"), 100);
    writer.append(std::vector<int32_t>{1, 2, 3});  // before the first mask: ones
    writer.end_document();
    writer.append(std::vector<int32_t>{4, 5, 6, 7, 8, 9}, std::vector<uint8_t>{0, 1, 0, 0, 1, 0});
    writer.append(std::vector<int32_t>{10, 11});
    writer.finish();
  }
  // Tokens 0 to 7: 1 1 1 0 1 0 0 1, lowest bit first; tokens 8 to 10: 0 1 1.
  EXPECT_EQ(scratch.read("a.mask"), "\x97\x06");
  const TokenFile file(scratch.path("a"));
  ASSERT_TRUE(file.masked());
  std::vector<uint8_t> mask(7);
  file.read_mask({2, 9}, mask.data());
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 0, 1, 0, 0, 1, 0}));

  scratch.write("a.mask", "\x97\x0e");
  expect_error(Exit::data, {"a.mask", "byte 1", "more than 11"}, [&] { TokenFile(scratch.path("a")); });
  scratch.write("a.mask", "\x97");
  expect_error(Exit::data, {"a.mask", "1 bytes", "11 tokens", "2"}, [&] { TokenFile(scratch.path("a")); });
  // A data set without a mask removes the mask of its predecessor.
  IndexedWriter writer(scratch.path("a"), 100);
  writer.append(std::vector<int32_t>{1});
  writer.finish();
  EXPECT_FALSE(TokenFile(scratch.path("a")).masked());
}

TEST(IndexedFile, AnUnfinishedWriterLeavesNothingAndKeepsTheOldFiles) {
  const Golden golden;
  {
    IndexedWriter writer(golden.scratch.path("a"), 1000);
    writer.append(std::vector<int32_t>{1, 2, 3}, std::vector<uint8_t>{0, 0, 1});
    writer.end_document();
    expect_error(Exit::data, {"a.bin", "token 4 is 1000", "vocabulary of 1000"}, [&] {
      writer.append(std::vector<int32_t>{1, 1000});
    });
    expect_error(Exit::data, {"token 3 is -1"}, [&] { writer.append(std::vector<int32_t>{-1}); });
  }
  EXPECT_EQ(golden.scratch.read("a.bin"), kGoldenBin);
  EXPECT_EQ(golden.scratch.read("a.idx"), kGoldenIdx);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(golden.scratch.folder()), {}), 2);
  IndexedWriter empty(golden.scratch.path("b"), 1000);
  expect_error(Exit::data, {"b.bin", "no tokens"}, [&] { empty.finish(); });
  expect_error(Exit::data, {"nowhere/c.bin", "cannot be written"},
               [&] { IndexedWriter(golden.scratch.path("nowhere/c"), 1000); });
}

// Every code with each of its meanings in other programs; the size of .bin distinguishes them.
TEST(IndexedFile, TheTokenSizeDistinguishesTypesOfOneCode) {
  struct Case {
    uint8_t code;
    int64_t bytes;
    const char* name;  // null: rejected
  };
  const Scratch scratch;
  for (const Case& c :
       {Case{1, 1, "uint8"}, Case{2, 1, "int8"}, Case{3, 2, "int16"}, Case{4, 4, "int32"},
        Case{5, 8, "int64"}, Case{6, 2, "uint16"}, Case{7, 4, "uint32"}, Case{8, 2, "uint16"},
        Case{8, 8, "uint64"}, Case{6, 4, nullptr}, Case{6, 8, nullptr}, Case{7, 8, nullptr}}) {
    SCOPED_TRACE(fmt::format("code {}, {} bytes", c.code, c.bytes));
    std::string bin;
    for (const int token : {3, 100, 7}) bin += char(token) + std::string(size_t(c.bytes - 1), '\0');
    scratch.write("a.bin", bin);
    scratch.write("a.idx", index_of(c.code, c.bytes, {1, 2}, {0, 2}));
    if (!c.name) {
      expect_error(Exit::data, {"a.idx: byte 17", "floating-point"}, [&] { TokenFile(scratch.path("a")); });
      continue;
    }
    const TokenFile file(scratch.path("a"), {.vocab = 101});
    EXPECT_EQ(name_of(file.documents()->type()), c.name);
    EXPECT_EQ(tokens_of(file), (std::vector<int32_t>{3, 100, 7}));
    const TokenFile small(scratch.path("a"), {.vocab = 100});
    expect_error(Exit::data, {"a.bin: token 1 is 100", "100 entries"}, [&] { small.check_all(); });
  }
}

TEST(IndexedFile, NegativeIdsAreNamed) {
  const Scratch scratch;
  for (const auto& [code, bytes] : {std::pair{2, 1}, {3, 2}, {4, 4}, {5, 8}}) {
    std::string bin(size_t(2 * bytes), '\0');
    std::fill(bin.begin() + bytes, bin.end(), '\xff');
    scratch.write("a.bin", bin);
    scratch.write("a.idx", index_of(uint8_t(code), bytes, {2}, {0, 1}));
    const TokenFile file(scratch.path("a"), {.vocab = 50000});
    expect_error(Exit::data, {"token 1 is -1"}, [&] { file.check_all(); });
  }
}

// Documents of several sequences, of none, and one without an end.
TEST(IndexedFile, DocumentsConsistOfSequences) {
  const Scratch scratch;
  scratch.write("a.bin", std::string(10, 'x'));
  scratch.write("a.idx", index_of(1, 1, {2, 3, 0, 4, 1}, {0, 0, 2, 3, 3, 4}));
  const TokenFile file(scratch.path("a"));
  const DocumentIndex& d = *file.documents();
  const std::vector<Range> wanted{{0, 0}, {0, 5}, {5, 5}, {5, 5}, {5, 9}, {9, 10}};
  ASSERT_EQ(d.documents(), int64_t(wanted.size()));
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(d.document(int64_t(i)), wanted[i]) << i;
  for (const auto& [token, document] : {std::pair{0, 1}, {4, 1}, {5, 4}, {8, 4}, {9, 5}})
    EXPECT_EQ(d.document_of(token), document) << token;
  for (const auto& [token, document] : {std::pair{0, 0}, {1, 2}, {5, 2}, {6, 5}, {9, 5}, {10, 6}})
    EXPECT_EQ(d.document_from(token), document) << token;
}

TEST(IndexedFile, DamageIsNamedWithFileAndByte) {
  struct Case {
    const char* what;
    std::vector<std::string_view> parts;
    void (*damage)(std::string& idx);
  };
  const Golden golden;
  const std::vector<Case> cases{
      {"magic", {"a.idx: byte 0", "MMIDIDX"}, [](std::string& s) { s[0] = 'X'; }},
      {"old", {"a.idx: byte 0", "TNTIDX", "again"}, [](std::string& s) { s.replace(0, 6, "TNTIDX"); }},
      {"version", {"a.idx: byte 9", "version 2"}, [](std::string& s) { s[9] = 2; }},
      {"type", {"a.idx: byte 17", "9 (expected 1 to 8)"}, [](std::string& s) { s[17] = 9; }},
      {"other type", {"a.idx: byte 34", "5 tokens of type 4", "10 bytes"}, [](std::string& s) { s[17] = 4; }},
      {"sequences", {"a.idx: byte 18", "sequences"}, [](std::string& s) { put(s, 18, ~uint64_t{0}); }},
      {"three sequences",
       {"a.idx: 82 bytes", "3 sequences", "94", "truncated"},
       [](std::string& s) { s[18] = 3; }},
      {"entries", {"a.idx: byte 26", "entries"}, [](std::string& s) { put(s, 26, uint64_t{1} << 62); }},
      {"no entry", {"a.idx: byte 26", "0 entries"}, [](std::string& s) { s[26] = 0; }},
      {"length",
       {"a.idx: byte 38", "sequence 1", "-2 tokens"},
       [](std::string& s) { put(s, 38, int32_t{-2}); }},
      {"long", {"a.idx: byte 34", "8 tokens", "10 bytes"}, [](std::string& s) { s[38] = 5; }},
      {"pointer", {"a.idx: byte 50", "sequence 1", "byte 4", "end at 6"}, [](std::string& s) { s[50] = 4; }},
      {"first",
       {"a.idx: byte 58", ": the first document starts with sequence 1"},
       [](std::string& s) { s[58] = 1; }},
      {"backwards", {"a.idx: byte 66", "document 1", "-1"}, [](std::string& s) { put(s, 66, int64_t{-1}); }},
      {"too far", {"a.idx: byte 74", "document 2", "sequence 3"}, [](std::string& s) { s[74] = 3; }},
      {"cut", {"a.idx: 81 bytes", "82", "truncated"}, [](std::string& s) { s.pop_back(); }},
      {"header", {"a.idx: is truncated", "33 bytes", "34"}, [](std::string& s) { s.resize(33); }},
      {"longer", {"a.idx: 83 bytes", "too long"}, [](std::string& s) { s.push_back(0); }},
      {"modes", {"a.idx", "multimodal data"}, [](std::string& s) { s.append(2, '\0'); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    std::string idx = kGoldenIdx;
    c.damage(idx);
    golden.scratch.write("a.idx", idx);
    try {
      TokenFile{golden.bin};
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::data) << error.what();
      for (std::string_view part : c.parts)
        EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << part << "\n"
                                                                                     << error.what();
    }
  }
  golden.scratch.write("a.idx", kGoldenIdx);
  golden.scratch.write("a.bin", kGoldenBin + "xx");
  expect_error(Exit::data, {"a.idx: byte 34", "5 tokens", "12 bytes"}, [&] { TokenFile{golden.bin}; });
  std::filesystem::remove(golden.bin);
  expect_error(Exit::data, {"a.bin: cannot be opened"}, [&] { TokenFile{golden.bin}; });
}

// Any bytes of an index cause an error with a message, or can be read completely.
TEST(IndexedFile, AnyBytesAreRejectedOrRead) {
  const Golden golden;
  std::mt19937_64 random(7);
  int read = 0, refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string idx = round % 2 ? kGoldenIdx : index_of(8, 2, {1, 0, 2, 2}, {0, 1, 1, 3, 4});
    for (uint64_t changes = random() % 4; changes-- > 0;) {
      const uint64_t place = random() % idx.size();
      switch (random() % 4) {
        case 0:
          idx[place] = char(random());
          break;
        case 1:
          idx[place] = char(idx[place] ^ (1 << random() % 8));
          break;
        case 2:
          put(idx, std::min(place, idx.size() - 8), random() % 3 ? random() % 16 : random());
          break;
        default:
          random() % 2 ? idx.resize(place + 8) : void(idx.insert(place, random() % 9, char(random())));
      }
    }
    golden.scratch.write("a.idx", idx);
    try {
      const TokenFile file(golden.bin);
      const DocumentIndex& d = *file.documents();
      int64_t at = 0;
      for (int64_t i = 0; i < d.documents(); ++i) {
        ASSERT_EQ(d.document(i).begin, at);
        at = d.document(i).end;
      }
      ASSERT_EQ(at, file.size());
      for (int64_t t = 0; t < file.size(); ++t) ASSERT_LE(d.document(d.document_of(t)).begin, t);
      tokens_of(file);
      ++read;
    } catch (const Error& error) {
      ASSERT_EQ(error.exit(), Exit::data) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace cleave::data
