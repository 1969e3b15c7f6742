#include "data/text/json_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/input_file.h"
#include "core/json.h"
#include "data/text/read_tokenizer_json.h"
#include "core/utf8.h"

namespace cleave::text {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMostBytes = int64_t{256} << 20;  // of a file

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(const std::string& path, TokenizerParts parts)
      : Tokenizer(path),
        forms_(std::move(parts.forms)),
        cuts_(std::move(parts.cuts)),
        pairs_(std::move(parts.pairs)),
        bytes_(std::move(parts.bytes)),
        special_(std::move(parts.special)),
        before_(std::move(parts.before)),
        after_(std::move(parts.after)),
        end_of_text_(parts.end_of_text),
        digest_(parts.digest) {
    cuts_at_lines_ =
        cuts_.cut_at_lines() && std::all_of(parts.added.begin(), parts.added.end(), [](const AddedToken& t) {
          return !t.lstrip && !t.rstrip && !t.single_word && t.content.find('\n') == std::string::npos;
        });
    std::vector<AddedToken> raw, normalized;
    for (AddedToken& token : parts.added) {
      if (token.normalized) {
        std::string a, b;
        token.content = std::string(normalize(token.content, a, b));
      }
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    raw_ = AddedTokens(std::move(raw)), normalized_ = AddedTokens(std::move(normalized));
  }

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& out) const override {
    const std::unique_ptr<Work, GiveBack> work = take();
    if (options.frame) out.insert(out.end(), before_.begin(), before_.end());
    const auto token = [&](int32_t id) { out.push_back(id); };
    raw_.cut(
        valid_utf8(text, work->valid), options.special_tokens,
        [&](std::string_view piece) {
          normalized_.cut(
              normalize(piece, work->form, work->other_form), options.special_tokens,
              [&](std::string_view between) {
                cuts_.each(between, work->cuts, [&](std::string_view piece_of_it) {
                  pairs_.encode(piece_of_it, work->pairs, out);
                });
              },
              token);
        },
        token);
    if (options.frame) out.insert(out.end(), after_.begin(), after_.end());
  }

  std::string_view bytes_of(int32_t id) const override {
    return id >= 0 && size_t(id) < bytes_.size() ? std::string_view(bytes_[size_t(id)]) : std::string_view();
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && size_t(id) < special_.size() && special_[size_t(id)] != 0;
  }
  int64_t vocab_size() const override { return int64_t(bytes_.size()); }
  std::optional<int32_t> end_of_text() const override { return end_of_text_; }
  uint64_t digest() const override { return digest_; }
  std::string describe() const override {
    return fmt::format("byte-level BPE, vocabulary {}", bytes_.size());
  }
  bool can_cut_at_lines() const override { return cuts_at_lines_; }

 private:
  // State of one call; concurrent calls use separate ones.
  struct Work {
    explicit Work(const PreTokenizers& all) : cuts(all) {}
    PreTokenizers::Work cuts;
    BytePairs::Work pairs;
    std::string valid, form, other_form;
  };
  struct GiveBack {
    const JsonTokenizer* owner = nullptr;
    void operator()(Work* work) const {
      const std::lock_guard lock(owner->mutex_);
      owner->free_.emplace_back(work);
    }
  };

  std::unique_ptr<Work, GiveBack> take() const {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Work* work = free_.back().release();
        free_.pop_back();
        return {work, GiveBack{this}};
      }
    }
    return {new Work(cuts_), GiveBack{this}};
  }

  std::string_view normalize(std::string_view text, std::string& a, std::string& b) const {
    bool odd = false;  // alternates buffers: input and output must differ
    for (const NormalForm form : forms_) text = to_normal_form(form, text, (odd = !odd) ? a : b);
    return text;
  }

  std::vector<NormalForm> forms_;
  PreTokenizers cuts_;
  AddedTokens raw_, normalized_;
  BytePairs pairs_;
  std::vector<std::string> bytes_;
  std::vector<char> special_;
  std::vector<int32_t> before_, after_;
  std::optional<int32_t> end_of_text_;
  uint64_t digest_;
  bool cuts_at_lines_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Work>> free_;
};

// End-of-text token in `tokenizer_config.json`; empty if it has none that can be read.
std::string configured_end_of_text(const std::string& path) {
  const fs::path file = fs::path(path).parent_path() / "tokenizer_config.json";
  if (!fs::is_regular_file(file)) return {};
  const json config = parse_json(InputFile(file.string(), Exit::data).text(kMostBytes), file.string(),
                                 Exit::data, "download it again, or leave it out");
  if (!config.is_object() || !config.contains("eos_token")) return {};
  const json& token = config["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token["content"].is_string()
             ? token["content"].get<std::string>()
             : std::string();
}

}  // namespace

std::unique_ptr<Tokenizer> parse_json_tokenizer(std::string_view text, const std::string& path,
                                                const std::string& end_of_text) {
  return std::make_unique<JsonTokenizer>(path, read_tokenizer_json(text, path, end_of_text));
}

std::unique_ptr<Tokenizer> open_json_tokenizer(const std::string& path) {
  return parse_json_tokenizer(InputFile(path, Exit::data).text(kMostBytes), path,
                              configured_end_of_text(path));
}

}  // namespace cleave::text
