#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <fstream>
#include <utility>

#include "app/commands.h"
#include "app/parse.h"
#include "app/pretrained.h"
#include "core/printable.h"
#include "data/text/corpus.h"
#include "data/text/sampling.h"
#include "model/layer.h"

namespace cleave::app {
namespace {

struct GenerateOptions {
  std::string prompt = "\n", prompts;
  std::vector<std::string> stop;
  int64_t tokens = 200, batch = 8;
  bool keeps = true, quiet = false;
  text::Sampling sampling;
};

std::vector<std::string> prompts_of(const GenerateOptions& o) {
  if (o.prompts.empty()) return {o.prompt};
  require(!text::is_json_lines(o.prompts), Exit::usage,
          "--prompts: JSON lines are not supported (got {}, expected a text with one prompt per line); write "
          "the prompts to a text",
          o.prompts);
  std::vector<std::string> lines;
  std::ifstream in(o.prompts);
  require(in.good(), Exit::data, "--prompts {}: cannot be read", o.prompts);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) lines.push_back(line);
  require(!lines.empty(), Exit::data, "--prompts {}: is empty; write one prompt per line", o.prompts);
  return lines;
}

// A prompt and its continuation.
class Text {
 public:
  Text(const Pretrained& model, const GenerateOptions& options, const std::string& prompt, uint64_t number)
      : tokenizer_(*model.tokenizer()),
        ends_(model.end_tokens()),
        o_(options),
        number_(number),
        tokens_(tokenizer_.encode(prompt)),
        decoder_(tokenizer_) {
    require(!tokens_.empty(), Exit::usage, "--prompt: contains no token; pass at least one character");
    for (const int32_t id : tokens_) shown_ += decoder_.add(id);
    if (o_.tokens == 0) finish();
  }

  bool done() const { return done_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t drawn() const { return count_; }

  // Draws the next token. Every rank has the same logits and draws the same token, so no message is
  // needed.
  void add(std::span<const float> logits) {
    const int32_t id = text::next_token(logits, tokens_, o_.sampling, number_ << 32 | uint64_t(count_++));
    if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) return finish();
    tokens_.push_back(id);
    const std::string piece = decoder_.add(id);
    shown_ += piece, added_ += piece;
    const bool stops = std::any_of(o_.stop.begin(), o_.stop.end(),
                                   [&](const std::string& s) { return added_.find(s) != std::string::npos; });
    if (stops || count_ == o_.tokens) finish();
  }

  // Returns the text that was not shown yet, with a line end once the text is complete.
  std::string take_shown() { return std::exchange(shown_, {}); }

  // Returns the next part of the text for the engine to compute, as its text `place`. A text longer
  // than the sequence restarts with its newest half, because cached keys and values depend on all
  // previous positions.
  runtime::TextPart next_part(int64_t place, int64_t seq) {
    const auto size = int64_t(tokens_.size());
    if (kept_ == 0) begin_ = std::max<int64_t>(0, size - seq);
    if (size - begin_ > seq) begin_ = size - std::max<int64_t>(1, seq / 2), kept_ = 0;
    runtime::TextPart part{place, kept_, {tokens_.begin() + begin_ + kept_, tokens_.end()}};
    kept_ = size - begin_;
    return part;
  }

 private:
  void finish() { done_ = true, shown_ += decoder_.finish() + "\n"; }

  const text::Tokenizer& tokenizer_;
  const std::vector<int32_t>& ends_;
  const GenerateOptions& o_;
  uint64_t number_;  // the prompt's index: draws do not depend on other prompts
  std::vector<int32_t> tokens_;
  text::StreamDecoder decoder_;
  std::string shown_, added_;  // continuation of the prompt
  int64_t count_ = 0, begin_ = 0, kept_ = 0;
  bool done_ = false;
};

// Continues several prompts at a time and prints them in order on the first rank; the first
// unfinished one is printed token by token.
class Generation {
 public:
  Generation(Pretrained& model, const GenerateOptions& options, bool prints)
      : model_(model), o_(options), prints_(prints) {}

  void run(const std::vector<std::string>& prompts) {
    for (size_t i = 0; i < prompts.size(); ++i) texts_.emplace_back(model_, o_, prompts[i], i);
    const auto begin = std::chrono::steady_clock::now();
    o_.keeps ? run_kept() : run_windows();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    int64_t drawn = 0;
    for (const Text& text : texts_) drawn += text.drawn();
    if (prints_ && !o_.quiet)
      std::fprintf(stderr, "%lld tokens in %.3f s, %.1f per second\n", static_cast<long long>(drawn),
                   took.count(), double(drawn) / took.count());
  }

 private:
  // Each of the engine's texts takes the next prompt when it completes one.
  void run_kept() {
    runtime::Engine& engine = model_.engine();
    const auto classes = size_t(model_.engine().model().head->classes());
    std::vector<Text*> at(size_t(std::min(engine.texts(), o_.batch)), nullptr);
    for (size_t next = 0;;) {
      print();
      std::vector<runtime::TextPart> parts;
      std::vector<Text*> growing;
      for (size_t place = 0; place < at.size(); ++place) {
        while ((!at[place] || at[place]->done()) && next < texts_.size()) at[place] = &texts_[next++];
        if (!at[place] || at[place]->done()) continue;
        parts.push_back(at[place]->next_part(int64_t(place), model_.seq_len()));
        growing.push_back(at[place]);
      }
      if (parts.empty()) return print();
      const std::vector<float> logits = engine.extend(parts);
      for (size_t i = 0; i < parts.size(); ++i)
        growing[i]->add(std::span(logits).subspan(i * classes, classes));
    }
  }

  void run_windows() {
    for (Text& text : texts_) {
      for (print(); !text.done(); print()) text.add(logits_after(text.tokens()));
    }
  }

  std::vector<float> logits_after(const std::vector<int32_t>& text) {
    // The newest seq tokens. Later positions are not visible, because attention is causal.
    const int64_t seq = model_.seq_len(), used = std::min<int64_t>(seq, int64_t(text.size()));
    window_.assign(size_t(seq), 0);
    std::copy(text.end() - used, text.end(), window_.begin());
    const std::vector<int32_t> no_targets(size_t(seq), kIgnoredTarget);
    return model_.engine().predict(batch_of(window_, no_targets), Range{used - 1, used});
  }

  void print() {
    for (; printed_ < texts_.size(); ++printed_) {
      std::string text = texts_[printed_].take_shown();
      if (terminal_) text = printable(text);  // generated text must not move the cursor
      if (prints_) std::fwrite(text.data(), 1, text.size(), stdout);
      if (!texts_[printed_].done()) break;
    }
    if (prints_) std::fflush(stdout);
  }

  Pretrained& model_;
  const GenerateOptions& o_;
  bool prints_;
  const bool terminal_ = isatty(STDOUT_FILENO) != 0;
  std::deque<Text> texts_;
  size_t printed_ = 0;  // number of printed texts
  std::vector<int32_t> window_;
};

void add_text_options(CLI::App& app, GenerateOptions& g) {
  auto* prompt = app.add_option("--prompt", g.prompt, "text to continue");
  app.add_option("--prompts", g.prompts, "file with one prompt per line; results keep their order")
      ->excludes(prompt);
  app.add_option("--batch", g.batch, "number of prompts to continue at a time")
      ->capture_default_str()
      ->check(integer(1));
  app.add_flag_callback(
      "--no_kv_cache", [&g] { g.keeps = false; },
      "recompute the whole text for every token instead of keeping a KV cache: slower, needs no memory for "
      "the cache");
  app.add_option("--tokens", g.tokens,
                 "maximum number of tokens to add; an end-of-text token ends a text earlier")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--stop", g.stop, "stop after this text; may be repeated")->expected(1)->take_all();
}

void add_sampling(CLI::App& app, text::Sampling& sampling) {
  app.add_option("--temperature", sampling.temperature, "sampling temperature; 0: greedy")
      ->capture_default_str()
      ->check(number(0));
  app.add_option("--top_k", sampling.top_k, "sample from the k most likely tokens (0: all)")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--top_p", sampling.top_p,
                 "sample from the smallest set of tokens with this total probability")
      ->capture_default_str()
      ->check(number(0, 1));
  app.add_option("--repetition_penalty", sampling.repetition_penalty,
                 "values above 1 make tokens of the text so far less likely")
      ->capture_default_str()
      ->check(number(1e-3));
  app.add_option("--seed", sampling.seed, "seed of the sampling")->capture_default_str()->check(seed());
}

}  // namespace

int run_generate(const Arguments& arguments) {
  CLI::App app(
      "Samples text from a checkpoint, on any number of ranks.\nExample: cleave generate "
      "runs/quickstart/checkpoints --prompt \"In the beginning\" --tokens 200",
      "generate");
  PretrainedOptions o;
  GenerateOptions g;
  add_options(app, o);
  add_text_options(app, g);
  add_sampling(app, g.sampling);
  if (!parse(app, arguments)) return 0;
  require(!g.prompt.empty(), Exit::usage, "--prompt: is empty; pass at least one character");
  std::erase(g.stop, "");

  launcher::Job job(o.ranks);
  return job.run([&] {
    const std::vector<std::string> prompts = prompts_of(g);
    o.needs_tokenizer = true;
    g.batch = std::min(g.batch, int64_t(prompts.size()));
    if (g.keeps) o.texts = g.batch;
    g.quiet = o.quiet;
    Pretrained model(o, job);
    Generation(model, g, job.first()).run(prompts);
    return 0;
  });
}

}  // namespace cleave::app
