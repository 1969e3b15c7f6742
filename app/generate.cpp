#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "app/parse.h"
#include "app/pretrained.h"
#include "text/sampling.h"

namespace cleave {
namespace {

struct GenerateOptions {
  std::string prompt = "\n", prompts;
  std::vector<std::string> stop;
  int64_t tokens = 200;
  Sampling sampling;
};

std::vector<std::string> prompts_of(const GenerateOptions& o) {
  if (o.prompts.empty()) return {o.prompt};
  std::vector<std::string> lines;
  std::ifstream in(o.prompts);
  require(in.good(), Exit::data, "--prompts {}: cannot be read", o.prompts);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) lines.push_back(line);
  require(!lines.empty(), Exit::data, "--prompts {}: has no line; give a text with a prompt on each",
          o.prompts);
  return lines;
}

// Continues prompts, and prints what becomes of each on the first rank. Every rank has the same logits and
// draws the same token, so nothing has to be sent.
class Generation {
 public:
  Generation(Pretrained& model, const GenerateOptions& options, bool prints)
      : model_(model), o_(options), prints_(prints) {}

  void run(const std::string& prompt, uint64_t number) {
    const Tokenizer& tokenizer = *model_.tokenizer();
    std::vector<int32_t> text = tokenizer.encode(prompt);
    require(!text.empty(), Exit::usage, "the prompt has no token; give at least one character to continue");
    StreamDecoder decoder(tokenizer);
    for (const int32_t id : text) print(decoder.add(id));
    std::string added;  // to the prompt
    for (int64_t i = 0; i < o_.tokens; ++i) {
      const int32_t id = next_token(logits_after(text), text, o_.sampling, number << 32 | uint64_t(i));
      if (tokenizer.end_of_text() == id) break;
      text.push_back(id);
      const std::string piece = decoder.add(id);
      print(piece);
      added += piece;
      if (std::any_of(o_.stop.begin(), o_.stop.end(),
                      [&](const std::string& s) { return added.find(s) != std::string::npos; }))
        break;
    }
    print(decoder.finish());
    print("\n");
  }

 private:
  std::vector<float> logits_after(const std::vector<int32_t>& text) {
    // The newest seq tokens; what stands behind them is not seen, because attention is causal.
    const int64_t seq = model_.seq_len(), used = std::min<int64_t>(seq, int64_t(text.size()));
    window_.assign(size_t(seq), 0);
    std::copy(text.end() - used, text.end(), window_.begin());
    const std::vector<int32_t> no_targets(size_t(seq), kIgnoredTarget);
    return model_.engine().predict(batch_of(window_, no_targets), Range{used - 1, used});
  }

  void print(const std::string& text) const {
    if (!prints_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  Pretrained& model_;
  const GenerateOptions& o_;
  bool prints_;
  std::vector<int32_t> window_;
};

}  // namespace

int run_generate(const Arguments& arguments) {
  CLI::App app(
      "Text from a checkpoint, on any number of ranks.\n"
      "Example: cleave generate runs/quickstart/checkpoints --prompt \"In the beginning\" --tokens 200",
      "generate");
  PretrainedOptions o;
  GenerateOptions g;
  add_options(app, o);
  auto* prompt = app.add_option("--prompt", g.prompt, "text to continue");
  app.add_option("--prompts", g.prompts, "a file with a text to continue on each line, one after the other")
      ->excludes(prompt);
  app.add_option("--tokens", g.tokens, "how many to add at most; the token that ends a text ends it before")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--stop", g.stop, "end after this text; may be given several times")
      ->expected(1)
      ->take_all();
  app.add_option("--temperature", g.sampling.temperature, "0 takes the likeliest")
      ->capture_default_str()
      ->check(number(0));
  app.add_option("--top_k", g.sampling.top_k, "draw among the likeliest only (0: all)")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--top_p", g.sampling.top_p,
                 "draw among the fewest of the likeliest that have this probability together")
      ->capture_default_str()
      ->check(number(0, 1));
  app.add_option("--repetition_penalty", g.sampling.repetition_penalty,
                 "above 1: tokens that stand in the text already become less likely")
      ->capture_default_str()
      ->check(number(1e-3));
  app.add_option("--seed", g.sampling.seed)->capture_default_str()->check(integer(0));
  if (!parse(app, arguments)) return 0;
  require(!g.prompt.empty(), Exit::usage, "--prompt is empty; give at least one character to continue");
  std::erase(g.stop, "");

  Job job(o.ranks);
  return job.run([&] {
    const std::vector<std::string> prompts = prompts_of(g);
    o.needs_tokenizer = true;
    Pretrained model(o, job);
    Generation generation(model, g, job.first());
    for (size_t i = 0; i < prompts.size(); ++i) generation.run(prompts[i], i);
    return 0;
  });
}

}  // namespace cleave
