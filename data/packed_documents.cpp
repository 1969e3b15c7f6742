#include "data/packed_documents.h"

#include <algorithm>
#include <array>

namespace cleave::data {
namespace {

constexpr int64_t kStride = 64;

}  // namespace

// Iterates over the pieces of documents, sample by sample.
class PackedDocuments::Walk {
 public:
  Walk(const DocumentIndex& index, int64_t seq_len, Beginning from)
      : index_(index), seq_len_(seq_len), at_(from), first_(from.document) {
    index_.begins(first_, begins_);
  }

  // Start of the next piece; skips finished documents.
  const Beginning& beginning() {
    while (at_.document < index_.documents() && left() == 0) at_ = {at_.document + 1, 0};
    return at_;
  }
  bool ended() { return beginning().document >= index_.documents(); }

  // Calls body for the pieces of one sample, from beginning() on.
  template <class Body>
  void sample(const Body& body) {
    for (int64_t used = 0; used < seq_len_ && !ended();) {
      const Piece piece{begin_of(at_.document) + at_.done, std::min(left(), seq_len_)};
      if (used + piece.positions > seq_len_) return;
      body(used, piece);
      used += piece.positions, at_.done += piece.positions;
    }
  }

 private:
  // Positions of the document that no sample has yet.
  int64_t left() {
    const int64_t tokens = begin_of(at_.document + 1) - begin_of(at_.document);
    return std::max<int64_t>(0, tokens - 1 - at_.done);
  }
  // Caches document starts; callers move forward and ask for a document and its successor.
  int64_t begin_of(int64_t document) {
    if (document >= first_ + int64_t(begins_.size())) {
      first_ = document - 1;
      index_.begins(first_, begins_);
    }
    return begins_[size_t(document - first_)];
  }

  const DocumentIndex& index_;
  int64_t seq_len_;
  Beginning at_;
  int64_t first_;
  std::array<int64_t, 128> begins_;
};

PackedDocuments::PackedDocuments(const TokenFile& file, int64_t seq_len) : file_(&file), seq_len_(seq_len) {
  for (Walk walk(*file.documents(), seq_len, {}); !walk.ended(); ++samples_) {
    if (samples_ % kStride == 0) starts_.push_back(walk.beginning());
    walk.sample([&](int64_t, const Piece& piece) { targets_ += piece.positions; });
  }
  require(samples_ > 0, Exit::data,
          "{}: none of its {} documents has two tokens; training needs at least two", file.name(),
          file.documents()->documents());
}

void PackedDocuments::read(int64_t sample, const SampleRow& row) const {
  CHECK(0 <= sample && sample < samples_, "sample {} of {}", sample, samples_);
  Walk walk(*file_->documents(), seq_len_, starts_[size_t(sample / kStride)]);
  for (int64_t before = sample % kStride; before > 0; --before) walk.sample([](int64_t, const Piece&) {});
  int64_t end = 0;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  walk.sample([&](int64_t position, const Piece& piece) {
    const Range range{piece.token, piece.token + piece.positions + 1};
    tokens.resize(size_t(range.size()));
    file_->read(range, tokens.data());
    std::copy(tokens.begin(), tokens.end() - 1, row.input + position);
    std::copy(tokens.begin() + 1, tokens.end(), row.targets + position);
    if (row.documents) std::fill_n(row.documents + position, piece.positions, int32_t(position));
    end = position + piece.positions;
    if (!file_->masked()) return;
    mask.resize(size_t(range.size()));
    file_->read_mask(range, mask.data());
    for (int64_t t = 0; t < piece.positions; ++t)
      if (!mask[size_t(t) + 1]) row.targets[position + t] = kIgnoredTarget;
  });
  std::fill(row.input + end, row.input + seq_len_, 0);
  std::fill(row.targets + end, row.targets + seq_len_, kIgnoredTarget);
  if (row.documents) std::fill(row.documents + end, row.documents + seq_len_, int32_t(end));
}

}  // namespace cleave::data
