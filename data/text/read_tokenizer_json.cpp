#include "data/text/read_tokenizer_json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"
#include "data/text/byte_alphabet.h"

namespace cleave::text {
namespace {

using nlohmann::json;

constexpr const char* kAgain = "download it again, or write it again with the tokenizers library";

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : path_(path), ids_end_(int64_t(text.size())) {
    root_ = parse_json(text, path, Exit::data, kAgain);
    require(root_.is_object(), Exit::data, "{}: expected a JSON object (tokenizer.json)", path);
  }

  TokenizerParts read(const std::string& end_of_text) {
    require(root_.contains("model"), Exit::data,
            "{}: \"model\" is missing; give a tokenizer.json of the tokenizers library, which contains "
            "everything",
            path_);
    read_normalizer(member(root_, "normalizer"), 0);
    read_pre_tokenizer(member(root_, "pre_tokenizer"), 0);
    if (!byte_level_) refuse("a pre-tokenizer without ByteLevel");
    read_model(root_.at("model"));
    read_added();
    read_frame(member(root_, "post_processor"), 0);
    find_end_of_text(end_of_text);
    root_.erase("truncation"), root_.erase("padding");
    const std::string rest = root_.dump();
    parts_.digest = XXH3_64bits(rest.data(), rest.size());
    return std::move(parts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(Exit::data,
         "{}: unsupported tokenizer (got {}, expected byte-level BPE as in GPT-2, Llama 3, Qwen2, Qwen3 and "
         "newer Mistral); give the tokenizer.model if the model has one, or make a token file with the "
         "tokenizers library and give the .bin",
         path_, what);
  }
  [[noreturn]] void broken(const std::string& what) const {
    fail(Exit::data, "{}: {}; {}", path_, what, kAgain);
  }

  static const json& member(const json& object, const char* name) {
    static const json none;
    const auto found = object.find(name);
    return found == object.end() ? none : *found;
  }
  static bool flag(const json& object, const char* name, bool otherwise) {
    const json& value = member(object, name);
    return value.is_null() ? otherwise : value.get<bool>();
  }
  static std::string type_of(const json& object) { return object.at("type").get<std::string>(); }
  static std::string shown(const std::string& word) { return in_quotes(word); }

  void read_normalizer(const json& n, int depth) {
    if (n.is_null()) return;
    const std::string type = type_of(n);
    if (type == "Sequence" && depth < 2) {
      for (const json& one : n.at("normalizers")) read_normalizer(one, depth + 1);
      return;
    }
    constexpr std::pair<std::string_view, NormalForm> kForms[] = {{"NFC", NormalForm::nfc},
                                                                  {"NFD", NormalForm::nfd},
                                                                  {"NFKC", NormalForm::nfkc},
                                                                  {"NFKD", NormalForm::nfkd}};
    for (const auto& [name, form] : kForms)
      if (type == name) return parts_.forms.push_back(form);
    refuse("the normalizer " + shown(type));
  }

  void read_pre_tokenizer(const json& p, int depth) {
    if (p.is_null()) return;
    const std::string type = type_of(p);
    if (byte_level_) refuse("a pre-tokenizer after ByteLevel");
    if (type == "Sequence" && depth < 2) {
      for (const json& one : p.at("pretokenizers")) read_pre_tokenizer(one, depth + 1);
    } else if (type == "Split") {
      read_split(p);
    } else if (type == "Digits") {
      if (!flag(p, "individual_digits", false)) refuse("the pre-tokenizer 'Digits' for runs of digits");
      parts_.cuts.add(PreTokenizers::at("\\p{N}", path_));
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      PreTokenizers::Cut cut = PreTokenizers::byte_level(flag(p, "use_regex", true), path_);
      cut.blank_before = flag(p, "add_prefix_space", true);
      parts_.cuts.add(std::move(cut));
    } else {
      refuse("the pre-tokenizer " + shown(type));
    }
  }

  void read_split(const json& p) {
    const json& pattern = p.at("pattern");
    const bool is_expression = pattern.contains("Regex");
    const auto text = pattern.at(is_expression ? "Regex" : "String").get<std::string>();
    if (text.empty()) broken("a pre-tokenizer splits at an empty text");
    PreTokenizers::Cut cut = PreTokenizers::at(is_expression ? text : literal_expression(text), path_);
    const auto behavior = p.at("behavior").get<std::string>();
    if (behavior == "Removed")
      (flag(p, "invert", false) ? cut.keep_between : cut.keep_matches) = false;
    else if (behavior != "Isolated")
      refuse("the behavior " + shown(behavior) + " of a pre-tokenizer");
    parts_.cuts.add(std::move(cut));
  }

  void read_model(const json& m) {
    const bool says_type = m.contains("type");
    const std::string type = says_type ? type_of(m) : m.contains("merges") ? "BPE" : "without a type";
    if (type != "BPE") refuse("a model of kind " + shown(type));
    if (!member(m, "dropout").is_null() && m.at("dropout").get<double>() != 0) refuse("a model with dropout");
    if (flag(m, "byte_fallback", false)) refuse("a model with byte_fallback");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!member(m, name).is_null() && !m.at(name).get<std::string>().empty())
        refuse(fmt::format("a model with {}", name));
    read_vocab(m.at("vocab"));
    read_merges(m.at("merges"));
    read_words(m);
  }

  void read_vocab(const json& vocab) {
    if (!vocab.is_object()) broken("the vocabulary of the model is not an object");
    for (const auto& [token, value] : vocab.items()) {
      const auto id = value.is_number_integer() ? value.get<int64_t>() : -1;
      if (id < 0 || id >= ids_end_)
        broken(fmt::format("the token {} has the id {} (expected 0 to {})", shown(token),
                           in_quotes(value.dump()), ids_end_ - 1));
      name(int32_t(id), token);
      ids_.emplace(token, int32_t(id));
    }
  }

  // Stores the bytes of a token in decoded text.
  void name(int32_t id, const std::string& token) {
    const auto at = size_t(id);
    if (parts_.bytes.size() <= at) parts_.bytes.resize(at + 1), parts_.special.resize(at + 1);
    if (!alphabet_.to_bytes(token, parts_.bytes[at])) parts_.bytes[at] = token;
  }

  int32_t id_of(const std::string& token, size_t merge) const {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      broken(fmt::format("merge {} contains {}, which is not in the vocabulary", merge, shown(token)));
    return found->second;
  }

  void read_merges(const json& merges) {
    if (!merges.is_array()) broken("the merges of the model are not a list");
    size_t number = 0;
    for (const json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        if (text.starts_with("#version")) continue;
        const size_t blank = text.find(' ');
        if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
          broken(fmt::format("merge {} is malformed (got {}, expected two tokens with a space between them)",
                             number, shown(text)));
        left = text.substr(0, blank), right = text.substr(blank + 1);
      } else {
        if (!merge.is_array() || merge.size() != 2) broken(fmt::format("merge {} is not a pair", number));
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      }
      parts_.pairs.merges.push_back({id_of(left, number), id_of(right, number), id_of(left + right, number)});
      ++number;
    }
  }

  void read_words(const json& m) {
    parts_.pairs.bytes.fill(BytePairs::kNone);
    const bool whole = flag(m, "ignore_merges", false);
    std::string bytes;
    for (const auto& [token, id] : ids_) {
      if (!alphabet_.to_bytes(token, bytes)) continue;
      if (bytes.size() == 1) parts_.pairs.bytes[static_cast<unsigned char>(bytes[0])] = id;
      if (whole && !bytes.empty()) parts_.pairs.whole.emplace_back(bytes, id);
    }
    parts_.pairs.fuse_unknown = flag(m, "fuse_unk", false);
    const json& unknown = member(m, "unk_token");
    if (unknown.is_null()) return;
    if (const auto found = ids_.find(unknown.get<std::string>()); found != ids_.end())
      parts_.pairs.unknown = found->second;
    else if (std::count(parts_.pairs.bytes.begin(), parts_.pairs.bytes.end(), BytePairs::kNone) > 0)
      broken(fmt::format("the vocabulary lacks some bytes, and also their substitute token {}",
                         shown(unknown.get<std::string>())));
  }

  void read_added() {
    const json& added = member(root_, "added_tokens");
    if (added.is_null()) return;
    if (!added.is_array()) broken("\"added_tokens\" is not a list");
    // The library numbers tokens that the model does not have consecutively, and ignores their ids in the
    // file.
    auto next = int64_t(ids_.size());
    for (const json& one : added) {
      AddedToken token;
      token.content = one.at("content").get<std::string>();
      token.special = flag(one, "special", false), token.single_word = flag(one, "single_word", false);
      token.lstrip = flag(one, "lstrip", false), token.rstrip = flag(one, "rstrip", false);
      token.normalized = flag(one, "normalized", !token.special);
      if (token.content.empty()) continue;
      const auto known = ids_.find(token.content);
      const int64_t id = known != ids_.end() ? known->second : next;
      if (const json& said = one.at("id"); !said.is_number_integer() || said.get<int64_t>() != id)
        broken(fmt::format("the added token {} has the id {}, but the tokenizers library assigns {}",
                           shown(token.content), in_quotes(said.dump()), id));
      if (id >= ids_end_) broken("the file has too many tokens");
      if (known == ids_.end()) ++next, ids_.emplace(token.content, int32_t(id));
      token.id = int32_t(id);
      name(token.id, token.content);
      parts_.special[size_t(id)] = token.special;
      parts_.added.push_back(std::move(token));
    }
  }

  // Reads the ids of special tokens around a text.
  void read_frame(const json& p, int depth) {
    if (p.is_null()) return;
    const std::string type = type_of(p);
    if (type == "Sequence" && depth < 2) {
      for (const json& one : p.at("processors")) read_frame(one, depth + 1);
    } else if (type == "TemplateProcessing") {
      read_template(p);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      frame_token(parts_.before, p.at("cls").at(1)), frame_token(parts_.after, p.at("sep").at(1));
    } else if (type != "ByteLevel") {
      refuse("the post-processor " + shown(type));
    }
  }

  void frame_token(std::vector<int32_t>& out, const json& id) const {
    const int64_t value = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (value < 0 || value >= int64_t(parts_.bytes.size()))
      broken(fmt::format("a post-processor adds the unknown id {}", in_quotes(id.dump())));
    out.push_back(int32_t(value));
  }

  void read_template(const json& p) {
    bool text_was = false;
    for (const json& piece : p.at("single")) {
      if (piece.contains("Sequence")) {
        if (std::exchange(text_was, true)) broken("a post-processor inserts the text twice");
        continue;
      }
      const auto token = piece.at("SpecialToken").at("id").get<std::string>();
      for (const json& id : p.at("special_tokens").at(token).at("ids"))
        frame_token(text_was ? parts_.after : parts_.before, id);
    }
    if (!text_was) broken("a post-processor omits the text");
  }

  void find_end_of_text(const std::string& configured) {
    for (const std::string& content : {std::string("<|endoftext|>"), std::string("<|end_of_text|>"),
                                       std::string("</s>"), std::string("<eos>"), configured})
      if (const auto found = ids_.find(content); found != ids_.end() && !content.empty()) {
        parts_.end_of_text = found->second;
        return;
      }
  }

  const std::string& path_;
  // Limits ids: each token takes bytes in the file, so an id cannot request more memory than the file's size.
  int64_t ids_end_;
  json root_;
  TokenizerParts parts_;
  ByteAlphabet alphabet_;
  std::unordered_map<std::string, int32_t> ids_;  // model tokens, later also added tokens
  bool byte_level_ = false;
};

}  // namespace

TokenizerParts read_tokenizer_json(std::string_view text, const std::string& path,
                                   const std::string& end_of_text) {
  try {
    return Reader(text, path).read(end_of_text);
  } catch (const json::exception& e) {
    fail(Exit::data, "{}: cannot be read as a tokenizer.json: {}; {}", path,
         printable(without_number(e.what())), kAgain);
  }
}

}  // namespace cleave::text
