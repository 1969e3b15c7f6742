#include <cstdio>
#include <fstream>
#include <vector>

#include "app/parse.h"
#include "core/error.h"
#include "core/units.h"
#include "data/ngram.h"
#include "data/split_text.h"
#include "data/token_file.h"

namespace cleave {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), std::streamsize(text.size()));
  out.close();
  require(out.good(), Exit::data, "cannot write {}: is the folder there, and is there space?", path);
}

int split(const std::string& in, const std::string& train, const std::string& validation) {
  const MappedFile file(in);
  const TextSplit parts = split_text(text_of(file));
  const std::string a = cut_out(text_of(file), parts.train), b = cut_out(text_of(file), parts.validation);
  require(!a.empty() && !b.empty(), Exit::data, "{} has {} bytes: too short to split", in,
          file.bytes().size());
  write_file(train, a), write_file(validation, b);
  std::printf("%s: %s for training, %s for validation (every 10th of 20 blocks)\n", in.c_str(),
              format_bytes(int64_t(a.size())).c_str(), format_bytes(int64_t(b.size())).c_str());
  return 0;
}

int tokenize(const std::string& in, const std::string& out) {
  const MappedFile file(in);
  require(!file.bytes().empty(), Exit::data, "{} is empty", in);
  write_llmc(out, std::vector<int32_t>(file.bytes().begin(), file.bytes().end()));
  std::printf("%s\n", TokenFile(out).describe().c_str());
  return 0;
}

int ngrams(const std::string& train, const std::string& validation) {
  const MappedFile a(train), b(validation);
  const std::vector<double> losses = ngram_losses(a.bytes(), b.bytes());
  for (size_t n = 0; n < losses.size(); ++n) std::printf("%zu-gram  %.4f nats a byte\n", n + 1, losses[n]);
  return 0;
}

}  // namespace

int run_data(const Arguments& arguments) {
  CLI::App app(
      "Text and token files.\n"
      "Example: cleave data split corpus.txt --train train.txt --validation validation.txt",
      "data");
  app.require_subcommand(1);
  std::string in, out, train, validation;
  CLI::App* split_command =
      app.add_subcommand("split", "cut a text into training and validation parts by a fixed rule");
  split_command->add_option("text", in)->required();
  split_command->add_option("--train", train)->required();
  split_command->add_option("--validation", validation)->required();
  CLI::App* tokenize_command =
      app.add_subcommand("tokenize", "text to an llm.c token file, one token a byte");
  tokenize_command->add_option("text", in)->required();
  tokenize_command->add_option("bin", out)->required();
  CLI::App* inspect_command =
      app.add_subcommand("inspect", "kind, size and vocabulary of a text or token file");
  inspect_command->add_option("file", in)->required();
  CLI::App* ngram_command =
      app.add_subcommand("ngrams", "losses of 1- to 5-gram byte models: what a model must beat");
  ngram_command->add_option("--train", train)->required();
  ngram_command->add_option("--validation", validation)->required();
  if (!parse(app, arguments)) return 0;
  if (*split_command) return split(in, train, validation);
  if (*tokenize_command) return tokenize(in, out);
  if (*ngram_command) return ngrams(train, validation);
  std::printf("%s\n", TokenFile(in).describe().c_str());
  return 0;
}

}  // namespace cleave
