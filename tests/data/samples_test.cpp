#include "data/samples.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "data/batch_loader.h"
#include "data/data_sources.h"
#include "data/indexed_file.h"
#include "data/packed_documents.h"
#include "tests/scratch.h"

namespace cleave::data {
namespace {

// Documents with token t of document d = 100 d + t, and optionally a mask that hides multiples of 5.
struct Corpora {
  Scratch scratch;
  std::string listed(const std::string& name, const std::string& text) const {
    return fmt::format("@{}", scratch.write(name, text));
  }
  std::string write(const std::string& name, const std::vector<int64_t>& lengths, bool masked = false) const {
    IndexedWriter writer(scratch.path(name), 50000);
    for (size_t d = 0; d < lengths.size(); ++d) {
      std::vector<int32_t> tokens(static_cast<size_t>(lengths[d]));
      std::vector<uint8_t> mask(masked ? tokens.size() : 0);
      for (size_t t = 0; t < tokens.size(); ++t) {
        tokens[t] = int32_t(100 * d + t);
        if (masked) mask[t] = tokens[t] % 5 != 0;
      }
      writer.append(tokens, mask);
      writer.end_document();
    }
    writer.finish();
    return scratch.path(name);
  }
};

struct Sample {
  std::vector<int32_t> input, targets, documents;
};

Sample sample_of(const Samples& samples, int64_t index, int64_t seq_len, bool documents = true) {
  Sample s{std::vector<int32_t>(size_t(seq_len), -7), std::vector<int32_t>(size_t(seq_len), -7),
           std::vector<int32_t>(size_t(seq_len), -7)};
  samples.read(index, {s.input.data(), s.targets.data(), documents ? s.documents.data() : nullptr});
  return s;
}

constexpr int32_t kNone = kIgnoredTarget;
using Row = std::vector<int32_t>;

TEST(PackedDocuments, StayWholeIfTheyFitAndAreCutOtherwise) {
  const Corpora corpora;
  // Documents of 3, 2, 1, 4, 12 and 3 tokens have 2, 1, 0, 3, 11 and 2 positions.
  const TokenFile file(corpora.write("a", {3, 2, 1, 4, 12, 3}), {.vocab = 50000});
  const PackedDocuments packed(file, 5);
  ASSERT_EQ(packed.size(), 5);
  EXPECT_EQ(packed.filled(), 19.0 / 25);
  const std::vector<Sample> want{{{0, 1, 100, 0, 0}, {1, 2, 101, kNone, kNone}, {0, 0, 2, 3, 3}},
                                 {{300, 301, 302, 0, 0}, {301, 302, 303, kNone, kNone}, {0, 0, 0, 3, 3}},
                                 {{400, 401, 402, 403, 404}, {401, 402, 403, 404, 405}, {0, 0, 0, 0, 0}},
                                 {{405, 406, 407, 408, 409}, {406, 407, 408, 409, 410}, {0, 0, 0, 0, 0}},
                                 {{410, 500, 501, 0, 0}, {411, 501, 502, kNone, kNone}, {0, 1, 1, 3, 3}}};
  for (size_t i = 0; i < want.size(); ++i) {
    const Sample got = sample_of(packed, int64_t(i), 5);
    EXPECT_EQ(got.input, want[i].input) << i;
    EXPECT_EQ(got.targets, want[i].targets) << i;
    EXPECT_EQ(got.documents, want[i].documents) << i;
  }
}

// Has many documents, so that samples are located from the middle of the file: every token except the first
// of each document is a target once, after its predecessor, and samples are as full as the next piece allows.
TEST(PackedDocuments, EveryTokenExceptTheFirstOfADocumentIsATargetOnce) {
  const Corpora corpora;
  std::mt19937 random(3);
  std::vector<int64_t> lengths(400);
  for (int64_t& l : lengths) l = 1 + int64_t(random() % 37);
  const TokenFile file(corpora.write("a", lengths), {.vocab = 50000});
  for (const int64_t seq : {1, 7, 16, 64}) {
    const PackedDocuments packed(file, seq);
    std::set<int32_t> targets;
    for (int64_t i = packed.size(); i-- > 0;) {
      const Sample s = sample_of(packed, i, seq);
      for (size_t t = 0; t < size_t(seq); ++t) {
        if (s.targets[t] == kNone) continue;
        EXPECT_EQ(s.targets[t], s.input[t] + 1);
        EXPECT_TRUE(targets.insert(s.targets[t]).second) << s.targets[t];
        const size_t begin = size_t(s.documents[t]);
        EXPECT_EQ(s.input[t] - s.input[begin], int32_t(t - begin));
      }
    }
    size_t wanted = 0;
    for (const int64_t l : lengths) wanted += size_t(l - 1);
    EXPECT_EQ(targets.size(), wanted);
  }
}

TEST(PackedDocuments, RejectDocumentsWithoutTargets) {
  const Corpora corpora;
  const TokenFile file(corpora.write("a", {1, 1, 1}), {.vocab = 50000});
  expect_error(Exit::data, {"a.bin", "3 documents", "two tokens"}, [&] { PackedDocuments(file, 4); });
}

TEST(Windows, MarkDocumentsOnlyOnRequest) {
  const Corpora corpora;
  const TokenFile file(corpora.write("a", {3, 1, 6, 3}), {.vocab = 50000});  // 13 tokens
  const auto windows = samples_of(file, {.seq_len = 4, .document_mask = true});
  ASSERT_EQ(windows->size(), 3);
  const std::vector<Sample> want{{{0, 1, 2, 100}, {1, 2, kNone, kNone}, {0, 0, 0, 3}},
                                 {{200, 201, 202, 203}, {201, 202, 203, 204}, {0, 0, 0, 0}},
                                 {{204, 205, 300, 301}, {205, kNone, 301, 302}, {0, 0, 2, 2}}};
  for (size_t i = 0; i < want.size(); ++i) {
    const Sample got = sample_of(*windows, int64_t(i), 4);
    EXPECT_EQ(got.input, want[i].input) << i;
    EXPECT_EQ(got.targets, want[i].targets) << i;
    EXPECT_EQ(got.documents, want[i].documents) << i;
  }
  const Sample plain = sample_of(*samples_of(file, {.seq_len = 4}), 0, 4, false);
  EXPECT_EQ(plain.targets, (Row{1, 2, 100, 200}));
}

// Documents 0 to 6 and 100 to 104 in windows of 5: padding after the last token is a separate document.
TEST(Windows, TheLastOneIsPaddedWithoutTargets) {
  const Corpora corpora;
  const TokenFile file(corpora.write("a", {7, 5}), {.vocab = 50000});
  const auto samples = samples_of(file, {.seq_len = 5, .document_mask = true, .fill_last = true});
  ASSERT_EQ(samples->size(), 3);
  const Sample last = sample_of(*samples, 2, 5);
  EXPECT_EQ(last.input, (Row{103, 0, 0, 0, 0}));
  EXPECT_EQ(last.targets, (Row{104, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(last.documents, (Row{0, 1, 1, 1, 1}));
}

TEST(Windows, OfManyShortDocumentsMarkThemAll) {
  const Corpora corpora;
  const TokenFile file(corpora.write("a", std::vector<int64_t>(300, 1)), {.vocab = 50000});
  const Sample s = sample_of(*samples_of(file, {.seq_len = 299, .document_mask = true}), 0, 299);
  for (int32_t t = 0; t < 299; ++t) {
    EXPECT_EQ(s.documents[size_t(t)], t);
    EXPECT_EQ(s.targets[size_t(t)], kNone);
  }
}

TEST(Samples, MaskedTokensAreNotTargets) {
  const Corpora corpora;
  const TokenFile file(corpora.write("a", {7, 5}, true), {.vocab = 50000});  // hides 0, 5, 100
  EXPECT_EQ(sample_of(*samples_of(file, {.seq_len = 11}), 0, 11, false).targets,
            (Row{1, 2, 3, 4, kNone, 6, kNone, 101, 102, 103, 104}));
  EXPECT_EQ(sample_of(*samples_of(file, {.seq_len = 6, .pack = true}), 0, 6).targets,
            (Row{1, 2, 3, 4, kNone, 6}));
  TokenBatches batches(file, {.seq_len = 3, .micro_batch = 3, .shuffle = false});
  EXPECT_EQ(batches.next(0, 0).valid_targets, 7);  // targets 1 to 6 and 100 to 102, without 5 and 100
  EvalBatches evaluated(file, {.seq_len = 3, .micro_batch = 2});
  EXPECT_EQ(evaluated.next(0).valid_targets, 5);
  EXPECT_EQ(evaluated.next(1).valid_targets, 4)
      << "101 to 104; the last two are in a padded window";
}

TEST(Samples, DataWithoutDocumentsAreRejectedByName) {
  const Scratch scratch;
  const TokenFile text(scratch.write("a.txt", "0123456789"));
  expect_error(Exit::data, {"a.txt", "bytes", "--pack"},
               [&] { samples_of(text, {.seq_len = 2, .pack = true}); });
  expect_error(Exit::data, {"a.txt", "--document_mask", ".idx"},
               [&] { samples_of(text, {.seq_len = 2, .document_mask = true}); });
}

Row row_of(const Tensor& t) { return {t.as<int32_t>(), t.as<int32_t>() + t.numel()}; }

struct Blended {
  Corpora corpora;
  DataSources corpus{fmt::format("0.6 {} 0.3 {} 0.1 {}", corpora.write("a", {41, 80}),
                                 corpora.write("b", {30, 7}), corpora.write("c", {90}))};
  TokenBatchesOptions options(int rank = 0, int ranks = 1) const {
    return {
        .seq_len = 4, .micro_batch = 1, .accumulation = 4 / ranks, .rank = rank, .ranks = ranks, .seed = 9};
  }
  // Inputs and targets of the global batch, sample by sample.
  std::vector<Row> batch(int64_t step, int ranks) const {
    std::vector<Row> out(4);
    for (int rank = 0; rank < ranks; ++rank) {
      TokenBatches batches(corpus.sources(), options(rank, ranks));
      for (int64_t micro = 0; micro < 4 / ranks; ++micro) {
        const Batch b = batches.next(step, micro);
        Row& row = out[size_t(b.position.first_sample)];
        row = row_of(b.input);
        for (const int32_t target : row_of(b.targets)) row.push_back(target);
      }
    }
    return out;
  }
};

TEST(BlendedBatches, AreEqualForAnyNumberOfRanksAndFromAnyStep) {
  const Blended blended;
  EXPECT_EQ(blended.corpus.shares(), (std::vector<int64_t>{6, 3, 1}));
  TokenBatches all(blended.corpus.sources(), blended.options());
  for (int64_t step = 0; step < 30; ++step) {
    std::vector<Row> whole(4);
    for (int64_t micro = 0; micro < 4; ++micro) {
      const Batch b = all.next(step, micro);
      whole[size_t(micro)] = row_of(b.input);
      for (const int32_t target : row_of(b.targets)) whole[size_t(micro)].push_back(target);
    }
    if (step % 7 != 0) continue;
    for (const int ranks : {1, 2, 4}) EXPECT_EQ(blended.batch(step, ranks), whole) << step << ", " << ranks;
  }
}

TEST(BlendedBatches, GiveEachSourceItsShareAndShuffleEachOfItsEpochs) {
  const Blended blended;
  TokenBatches batches(blended.corpus.sources(), blended.options());
  std::map<int, std::vector<int64_t>> given;
  for (int64_t position = 0; position < 400; ++position) {
    const Blend::SourceSample at = batches.place(position / 4, position % 4);
    given[at.source].push_back(at.sample);
  }
  EXPECT_EQ(given[0].size(), 240u);
  EXPECT_EQ(given[1].size(), 120u);
  EXPECT_EQ(given[2].size(), 40u);
  // Source 1 has 37 tokens, 9 windows: each epoch has every window once, and no two orders are equal.
  const auto epoch = [&](int64_t e) { return Row(given[1].begin() + 9 * e, given[1].begin() + 9 * (e + 1)); };
  std::set<Row> orders;
  for (int64_t e = 0; e < 13; ++e) {
    const Row order = epoch(e);
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), 9u) << e;
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 13u);
}

TEST(BlendedBatches, SourcesOfEqualSizeAreShuffledDifferently) {
  const Corpora corpora;
  const DataSources corpus(fmt::format("1 {} 1 {}", corpora.write("a", {81}), corpora.write("b", {81})));
  TokenBatches batches(corpus.sources(), {.seq_len = 4, .micro_batch = 2, .seed = 1});
  int same = 0;
  for (int64_t step = 0; step < 20; ++step)
    same += batches.place(step, 0).sample == batches.place(step, 1).sample;
  EXPECT_LT(same, 10);
}

TEST(DataSources, ReadOneFileABlendAndAList) {
  const Corpora corpora;
  const std::string a = corpora.write("a", {9}), b = corpora.write("b c", {8});
  corpora.scratch.write("0.5 x", "a text");
  EXPECT_EQ(DataSources(a).tokens(), 9);
  EXPECT_EQ(DataSources(indexed_names(a).bin).shares(), (std::vector<int64_t>{1}));
  EXPECT_EQ(DataSources(corpora.scratch.path("0.5 x")).tokens(), 6);  // a name that looks like a blend
  const DataSources both(corpora.listed("mix.txt", fmt::format("# weights\n 3 {}\n\n0.5\t{} \r\n", a, b)));
  EXPECT_EQ(both.tokens(), 17);
  EXPECT_EQ(both.shares(), (std::vector<int64_t>{6, 1}));
  EXPECT_EQ(files_of_data(fmt::format("@{}", corpora.scratch.path("mix.txt"))),
            (std::vector<std::string>{a, b}));
  // The weights of files in a folder, a pattern and a list are their sizes: 18 and 16 bytes of tokens.
  EXPECT_EQ(files_of_data(corpora.scratch.path("[ab]*.bin")),
            (std::vector<std::string>{indexed_names(a).bin, indexed_names(b).bin}));
  EXPECT_EQ(DataSources(corpora.scratch.path("[ab]*.bin")).shares(), (std::vector<int64_t>{9, 8}));
  EXPECT_EQ(DataSources(fmt::format("{0} {0}", indexed_names(a).bin)).shares(), (std::vector<int64_t>{1, 1}));
  const std::string written = as_data(sources_of_data(corpora.scratch.path("[ab]*.bin")));
  EXPECT_EQ(DataSources(written).shares(), (std::vector<int64_t>{9, 8}));
  EXPECT_EQ(files_of_data(written), files_of_data(corpora.scratch.path("[ab]*.bin")));
  std::filesystem::create_directory(corpora.scratch.path("folder"));
  expect_error(Exit::data, {"folder", "contains no matching file"},
               [&] { DataSources(corpora.scratch.path("folder")); });
  expect_error(Exit::data, {"z*.txt", "contains no matching file"},
               [&] { DataSources(corpora.scratch.path("z*.txt")); });
  corpora.scratch.write("folder/two.txt", "22"), corpora.scratch.write("folder/one.txt", "1"),
      corpora.scratch.write("folder/.no", "0");
  EXPECT_EQ(DataSources(corpora.scratch.path("folder")).shares(), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(both.blended());
  EXPECT_FALSE(both.bytes());
  EXPECT_EQ(both.vocab(), 65536);
  DataSources known(fmt::format("1 {} 1 {}", a, a));
  known.use_vocab(77);
  EXPECT_EQ(known.vocab(), 77);

  expect_error(Exit::usage, {"'b'", "weight"}, [&] { DataSources(fmt::format("1 {} b 2", a)); });
  expect_error(Exit::usage, {": missing file after the weight 2"}, [&] { DataSources(fmt::format("1 {} 2", a)); });
  expect_error(Exit::usage, {"-1", "above 0"}, [&] { DataSources(fmt::format("1 {} -1 {}", a, a)); });
  expect_error(Exit::usage, {"list.txt:2", "'x'"},
               [&] { DataSources(corpora.listed("list.txt", fmt::format("1 {}\nx y\n", a))); });
  expect_error(Exit::usage, {"list.txt:1", ": missing file after the weight 1"},
               [&] { DataSources(corpora.listed("list.txt", "1\n")); });
  expect_error(Exit::usage, {"is empty"}, [&] { DataSources(corpora.listed("list.txt", "# a\n")); });
  expect_error(Exit::usage, {"nowhere"}, [&] { DataSources("@nowhere"); });
  expect_error(Exit::data, {"nowhere"}, [&] { DataSources(fmt::format("1 nowhere 1 {}", a)); });
}

}  // namespace
}  // namespace cleave::data
