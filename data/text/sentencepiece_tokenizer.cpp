#include "data/text/sentencepiece_tokenizer.h"

#include "core/error.h"

#ifdef CLEAVE_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/input_file.h"
#include "core/printable.h"
#include "data/text/sentencepiece_file.h"
#include "core/utf8.h"
#endif

namespace cleave::text {

#ifdef CLEAVE_HAVE_SENTENCEPIECE
namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";  // represents a blank in pieces

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : Tokenizer(path) {
    const std::string file = InputFile(path, Exit::data).text(int64_t{64} << 20);
    digest_ = XXH3_64bits(file.data(), file.size());
    const auto status = processor_.LoadFromSerializedProto(checked_sentencepiece(file, path));
    require(status.ok() && processor_.GetPieceSize() > 0, Exit::data,
            "{}: the sentencepiece library cannot read it: {}; give the tokenizer.model of a model, or its "
            "tokenizer.json",
            path, in_quotes(status.ToString(), 200));
    for (int id = 0; id < processor_.GetPieceSize(); ++id) bytes_.push_back(bytes_of_piece(id));
    const std::vector<std::string> pieces = processor_.EncodeAsPieces("a");
    adds_blank_ = !pieces.empty() && pieces[0].starts_with(kBlank);
  }

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& out) const override {
    std::string scratch;
    std::vector<int> ids;
    const auto status = processor_.Encode(valid_utf8(text, scratch), &ids);
    require(status.ok(), Exit::data, "{}: the sentencepiece library cannot encode a text of {} bytes: {}",
            path(), text.size(), in_quotes(status.ToString(), 200));
    if (options.frame && processor_.bos_id() >= 0) out.push_back(processor_.bos_id());
    out.insert(out.end(), ids.begin(), ids.end());
  }

  std::string_view bytes_of(int32_t id) const override {
    return id >= 0 && size_t(id) < bytes_.size() ? std::string_view(bytes_[size_t(id)]) : std::string_view();
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IsControl(id);
  }
  std::string_view first_bytes_of(int32_t id) const override {
    std::string_view bytes = bytes_of(id);
    if (adds_blank_ && bytes.starts_with(' ') && !processor_.IsUnknown(id)) bytes.remove_prefix(1);
    return bytes;
  }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<int32_t> end_of_text() const override {
    return processor_.eos_id() >= 0 ? std::optional<int32_t>(processor_.eos_id()) : std::nullopt;
  }
  uint64_t digest() const override { return digest_; }
  std::string describe() const override {
    return fmt::format("SentencePiece, vocabulary {}", processor_.GetPieceSize());
  }
  // Blanks at the ends of a text are encoded differently from those inside.
  bool can_cut_at_lines() const override { return false; }

 private:
  std::string bytes_of_piece(int id) const {
    if (processor_.IsControl(id)) return {};
    if (processor_.IsUnknown(id)) return " \xE2\x81\x87 ";  // as the library decodes it
    std::string_view piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id))  // <0x0A>
      return std::string(1, char(std::stoi(std::string(piece.substr(3, 2)), nullptr, 16)));
    std::string text;
    for (size_t at = 0; (at = piece.find(kBlank)) != std::string_view::npos;
         piece.remove_prefix(at + kBlank.size()))
      text.append(piece.substr(0, at)) += ' ';
    return text.append(piece);
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> bytes_;
  uint64_t digest_ = 0;
  bool adds_blank_ = false;  // before a text
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(path);
}
#else
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  fail(Exit::data,
       "{}: this build has no sentencepiece library; install libsentencepiece-dev and build again, or give a "
       "tokenizer.json",
       path);
}
#endif

}  // namespace cleave::text
