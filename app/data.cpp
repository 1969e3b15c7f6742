#include <cstdio>
#include <fstream>
#include <vector>

#include "app/output_paths.h"
#include "app/parse.h"
#include "core/error.h"
#include "core/units.h"
#include "data/ngram.h"
#include "data/split_text.h"
#include "data/token_file.h"

namespace cleave {
namespace {

// A text, whole. Error(data) for a token file, whose bytes are no text.
std::string read_text(const std::string& path) {
  const TokenFile tokens(path);
  require(tokens.kind() == TokenFile::Kind::bytes, Exit::data,
          "{}: holds {} tokens ({}) and not text; give the text that it was made from", path, tokens.size(),
          name_of(tokens.kind()));
  return InputFile(path, Exit::data).text();
}

int64_t write_parts(const std::string& path, std::string_view text, const std::vector<Range>& parts) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  int64_t bytes = 0;
  for (const Range& part : parts) {
    out.write(text.data() + part.begin, std::streamsize(part.size()));
    bytes += part.size();
  }
  out.close();
  require(out.good(), Exit::data, "cannot write {}: is the folder there, and is there space?", path);
  return bytes;
}

int split(const std::string& in, const std::string& train, const std::string& validation) {
  OutputPaths paths;
  paths.input("the text", in), paths.file("--train", train), paths.file("--validation", validation);
  paths.require_distinct();
  const std::string text = read_text(in);
  const TextSplit parts = split_text(text);
  require(!parts.train.empty() && !parts.validation.empty(), Exit::data,
          "{} has {} bytes: too short to split", in, text.size());
  const int64_t a = write_parts(train, text, parts.train);
  const int64_t b = write_parts(validation, text, parts.validation);
  std::printf("%s: %s for training, %s for validation (every 10th of 20 blocks)\n", in.c_str(),
              format_bytes(a).c_str(), format_bytes(b).c_str());
  return 0;
}

int tokenize(const std::string& in, const std::string& out) {
  OutputPaths paths;
  paths.input("the text", in), paths.file("the token file", out);
  paths.file("its unfinished form", out + ".partial");
  paths.require_distinct();
  const std::string text = read_text(in);
  const auto bytes = bytes_of(text);
  constexpr int64_t kByteVocab = 256;
  write_llmc(out, std::vector<int32_t>(bytes.begin(), bytes.end()), kByteVocab);
  std::printf("%s\n", TokenFile(out).describe().c_str());
  return 0;
}

int ngrams(const std::string& train, const std::string& validation) {
  const std::string a = read_text(train), b = read_text(validation);
  const std::vector<double> losses = ngram_losses(bytes_of(a), bytes_of(b));
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
