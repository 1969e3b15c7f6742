#include "data/text/corpus.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/printable.h"
#include "core/utf8.h"

namespace cleave::text {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // bytes that one thread encodes at a time

// A part of the file and its result.
struct Piece {
  std::string bytes;
  int64_t first_line = 0;  // of JSON lines, from 1
  int64_t end = 0;         // in the file
  std::vector<int32_t> ids;
  std::vector<size_t> ends;  // ends of documents in `ids`
  std::exception_ptr failure;
  bool done = false;
};

// Last position where a text can be cut; 0 if none.
size_t last_cut(std::string_view text) {
  for (size_t at = text.size() - 1; at > 1; --at) {
    const auto next = static_cast<unsigned char>(text[at]);
    if (text[at - 1] != '\n' || !((next | 0x20) >= 'a' && (next | 0x20) <= 'z')) continue;
    size_t before = at - 2;
    while (before > 0 && at - before < 5 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80)
      --before;
    if (!is_white_space(first_character(text.substr(before)).code)) return at;
  }
  return 0;
}

// Splits the file into pieces that can be encoded separately.
class Pieces {
 public:
  Pieces(const std::string& path, bool lines, bool cut) : file_(path, Exit::data), lines_(lines), cut_(cut) {}

  // Null after the last piece.
  std::shared_ptr<Piece> next() {
    while (true) {
      const bool ends = read_ == file_.size();
      if (ends && held_.empty()) return nullptr;
      size_t size = ends ? held_.size() : 0;
      if (!ends && held_.size() >= wanted_ && (lines_ || cut_))
        size = lines_ ? held_.rfind('\n') + 1 : last_cut(held_);
      if (size > 0) return take(size);
      if (held_.size() >= wanted_) wanted_ *= 2;  // doubling avoids quadratic time for repeated searches
      read();
    }
  }

 private:
  void read() {
    const auto bytes = size_t(std::min<int64_t>(file_.size() - read_, int64_t(kPiece)));
    const size_t before = held_.size();
    held_.resize(before + bytes);
    file_.read(read_, std::as_writable_bytes(std::span(held_.data() + before, bytes)));
    read_ += int64_t(bytes);
  }

  std::shared_ptr<Piece> take(size_t size) {
    auto piece = std::make_shared<Piece>();
    piece->bytes = held_.substr(0, size);
    held_.erase(0, size);
    wanted_ = kPiece;
    piece->first_line = line_;
    if (lines_) line_ += std::count(piece->bytes.begin(), piece->bytes.end(), '\n');
    piece->end = read_ - int64_t(held_.size());
    return piece;
  }

  InputFile file_;
  bool lines_, cut_;
  std::string held_;
  size_t wanted_ = kPiece;
  int64_t read_ = 0, line_ = 1;
};

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const CorpusOptions& options, bool lines)
      : tokenizer_(tokenizer), options_(options), lines_(lines), end_(tokenizer.end_of_text()) {}

  void encode(Piece& piece) const {
    try {
      lines_ ? encode_lines(piece) : encode_text(piece);
    } catch (...) {
      piece.failure = std::current_exception();
    }
    piece.bytes = {};
    const std::lock_guard lock(mutex_);
    piece.done = true;
    changed_.notify_all();
  }

  void wait_for(const Piece& piece) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return piece.done; });
  }

 private:
  void encode_text(Piece& piece) const {
    tokenizer_.encode(piece.bytes, {}, piece.ids);
    for (size_t i = 0; end_ && i < piece.ids.size(); ++i)
      if (piece.ids[i] == *end_) piece.ends.push_back(i + 1);
  }

  void encode_lines(Piece& piece) const {
    int64_t line = piece.first_line - 1;
    for (size_t at = 0; at < piece.bytes.size();) {
      const size_t end = std::min(piece.bytes.find('\n', at), piece.bytes.size());
      const std::string_view text = std::string_view(piece.bytes).substr(at, end - at);
      at = end + 1, ++line;
      if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      tokenizer_.encode(document(text, line), {}, piece.ids);
      if (end_) piece.ids.push_back(*end_);
      piece.ends.push_back(piece.ids.size());
    }
  }

  std::string document(std::string_view line, int64_t number) const {
    constexpr const char* kWanted = "each line of a .jsonl file must be a JSON object";
    if (const auto fault = fault_in_json(line))
      fail(Exit::data, "{}:{}:{}: {}; {}", options_.path, number, fault->column, fault->message, kWanted);
    nlohmann::json object = nlohmann::json::parse(line);
    require(object.is_object(), Exit::data, "{}:{}:1: expected a JSON object; {}", options_.path, number,
            kWanted);
    for (const char* chat : {"messages", "conversations", "conversation"})
      require(object.contains(options_.key) || !object.contains(chat), Exit::data,
              "{}:{}: is a chat under the key '{}' (expected a string under {}); write each chat as one text "
              "with the template of the model (tokenizer.apply_chat_template(chat, tokenize=False)), under a "
              "key for texts",
              options_.path, number, chat, in_quotes(options_.key));
    require(object.contains(options_.key) && object[options_.key].is_string(), Exit::data,
            "{}:{}: no text under the key {}: {}; set the key of the documents with --jsonl_key",
            options_.path, number, in_quotes(options_.key), in_quotes(line));
    return std::move(object[options_.key].get_ref<std::string&>());
  }

  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  bool lines_;
  std::optional<int32_t> end_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

// Threads that encode queued pieces in any order.
class Team {
 public:
  Team(const Encoder& encoder, int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, &encoder] { work(encoder); });
  }
  ~Team() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true, waiting_.clear();
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void give(std::shared_ptr<Piece> piece) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(piece));
    }
    changed_.notify_one();
  }

 private:
  void work(const Encoder& encoder) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (ended_) return;
      const std::shared_ptr<Piece> piece = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      encoder.encode(*piece);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Piece>> waiting_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

// Passes the ids of a piece to the sink; returns true if a document is incomplete.
bool hand_on(const Piece& piece, const CorpusSink& sink, bool open) {
  if (piece.failure) std::rethrow_exception(piece.failure);
  const std::span<const int32_t> ids(piece.ids);
  size_t from = 0;
  for (const size_t end : piece.ends) {
    if (end > from) sink.tokens(ids.subspan(from, end - from));
    sink.end_document();
    from = end, open = false;
  }
  if (from < ids.size()) sink.tokens(ids.subspan(from)), open = true;
  if (sink.progress) sink.progress(piece.end);
  return open;
}

}  // namespace

bool is_json_lines(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

void tokenize_corpus(const Tokenizer& tokenizer, const CorpusOptions& options, const CorpusSink& sink) {
  const bool lines = is_json_lines(options.path);
  Pieces pieces(options.path, lines, tokenizer.can_cut_at_lines());
  const Encoder encoder(tokenizer, options, lines);
  Team team(encoder, std::max(1, options.threads));
  std::deque<std::shared_ptr<Piece>> in_flight;
  bool more = true, open = false;
  while (more || !in_flight.empty()) {
    while (more && in_flight.size() < size_t(options.threads) * 2 + 1) {
      std::shared_ptr<Piece> piece = pieces.next();
      if (!(more = piece != nullptr)) break;
      in_flight.push_back(piece);
      team.give(std::move(piece));
    }
    if (in_flight.empty()) break;
    encoder.wait_for(*in_flight.front());
    open = hand_on(*in_flight.front(), sink, open);
    in_flight.pop_front();
  }
  if (!open) return;
  if (const auto end = tokenizer.end_of_text()) sink.tokens(std::span(&*end, 1));
  sink.end_document();
}

}  // namespace cleave::text
