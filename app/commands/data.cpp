#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "app/add_options.h"
#include "app/commands.h"
#include "app/commands/inspect_data.h"
#include "app/output_paths.h"
#include "app/parse.h"
#include "app/tokenize.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/units.h"
#include "core/warnings.h"
#include "data/indexed_file.h"
#include "data/ngram.h"
#include "data/split_text.h"
#include "data/text/corpus.h"
#include "data/token_file.h"

namespace cleave::app {
namespace {

// Reads a text, or the documents in JSON lines, completely. Error(data) for a token file.
std::string read_text(const std::string& path, const std::string& key) {
  const data::TokenFile tokens(path, {.token_bytes = 2});  // any width; a token file is an error
  require(tokens.kind() == data::TokenFile::Kind::bytes, Exit::data,
          "{}: contains {} tokens ({}) instead of text; give the original text", path, tokens.size(),
          data::name_of(tokens.kind()));
  if (!text::is_json_lines(path)) return InputFile(path, Exit::data).text();
  std::string documents;
  text::CorpusSink sink;
  sink.tokens = [&](std::span<const int32_t> ids) { documents.append(ids.begin(), ids.end()); };
  sink.end_document = [] {};
  text::tokenize_corpus(*text::open_tokenizer("byte"), {.path = path, .key = key}, sink);
  return documents;
}

// A partial text on a full disk must not look complete.
int64_t write_parts(const std::string& path, std::string_view text, const std::vector<Range>& parts) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const bool opened = out.is_open();
  int64_t bytes = 0;
  for (const Range& part : parts) {
    out.write(text.data() + part.begin, std::streamsize(part.size()));
    bytes += part.size();
  }
  out.close();
  if (out.good()) return bytes;
  const int error = errno;
  std::error_code none;
  if (opened && std::filesystem::is_regular_file(path, none)) std::filesystem::remove(path, none);
  fail(Exit::data, "{}: cannot be written: {}; check the folder, its permissions and the free space", path,
       std::strerror(error));
}

// Every tenth document is for validation: the same share as for a text, with each document in one
// of the two files.
constexpr int64_t kValidateEvery = 10;

int split_documents(const data::TokenFile& data, const std::string& train, const std::string& validation) {
  const data::DocumentIndex& index = *data.documents();
  require(index.documents() >= kValidateEvery, Exit::data,
          "{}: too few documents to split (got {}, expected at least {}); give a larger data set",
          data.path(), index.documents(), kValidateEvery);
  const int64_t width = index.token_bytes() <= 2 ? 2 : 4;
  const int64_t vocab = width == 2 ? int64_t{1} << 16 : data::TokenFile::kUnknownVocab;
  data::IndexedWriter parts[] = {{train, vocab, width}, {validation, vocab, width}};
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  for (int64_t d = 0; d < index.documents(); ++d) {
    data::IndexedWriter& to = parts[d % kValidateEvery == kValidateEvery - 1];
    const Range document = index.document(d);
    constexpr int64_t kPiece = 1 << 20;
    for (Range piece{document.begin, document.begin}; piece.end < document.end;) {
      piece = {piece.end, std::min(document.end, piece.end + kPiece)};
      tokens.resize(size_t(piece.size())), mask.resize(data.masked() ? tokens.size() : 0);
      data.read(piece, tokens.data());
      if (data.masked()) data.read_mask(piece, mask.data());
      to.append(tokens, mask);
    }
    to.end_document();
  }
  for (data::IndexedWriter& part : parts) part.finish();
  std::printf(
      "%s: %lld documents with %lld tokens for training, %lld with %lld for validation (every %lldth)\n",
      data.path().c_str(), static_cast<long long>(parts[0].documents()),
      static_cast<long long>(parts[0].tokens()), static_cast<long long>(parts[1].documents()),
      static_cast<long long>(parts[1].tokens()), static_cast<long long>(kValidateEvery));
  return 0;
}

// Splits documents in JSON lines; lines stay unchanged.
int split_lines(const std::string& in, const std::string& train, const std::string& validation) {
  for (const auto& [option, path] : {std::pair{"--train", train}, {"--validation", validation}})
    require(
        text::is_json_lines(path), Exit::usage,
        "{}: a part of {} must be JSON lines too (got {}, expected a name that ends in .jsonl); rename it",
        option, in, path);
  const std::string text = InputFile(in, Exit::data).text();
  std::vector<Range> parts[2];
  int64_t documents = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (text.find_first_not_of(" \t\r\n", at) < end)
      parts[documents++ % kValidateEvery == kValidateEvery - 1].push_back({int64_t(at), int64_t(end)});
    at = end;
  }
  require(documents >= kValidateEvery, Exit::data,
          "{}: too few documents to split (got {}, expected at least {}); give a larger data set", in,
          documents, kValidateEvery);
  write_parts(train, text, parts[0]), write_parts(validation, text, parts[1]);
  std::printf("%s: %zu documents for training, %zu for validation (every %lldth)\n", in.c_str(),
              parts[0].size(), parts[1].size(), static_cast<long long>(kValidateEvery));
  return 0;
}

int split(const std::string& in, const std::string& train, const std::string& validation) {
  OutputPaths paths;
  if (data::is_indexed(in)) {
    const data::IndexedNames names = data::indexed_names(in);
    for (const std::string& name : {names.bin, names.idx, names.mask}) paths.input("the data set", name);
    for (const auto& [option, path] : {std::pair{"--train", train}, {"--validation", validation}})
      for (const data::IndexedNames& part = data::indexed_names(path);
           const std::string& name : {part.bin, part.idx, part.mask})
        paths.file(option, name);
    paths.require_distinct();
    return split_documents(data::TokenFile(in), train, validation);
  }
  paths.input("the text", in), paths.file("--train", train), paths.file("--validation", validation);
  paths.require_distinct();
  if (text::is_json_lines(in)) return split_lines(in, train, validation);
  const std::string text = read_text(in, "");
  const data::TextSplit parts = data::split_text(text);
  require(!parts.train.empty() && !parts.validation.empty(), Exit::data,
          "{}: too short to split (got {} bytes)", in, text.size());
  const int64_t a = write_parts(train, text, parts.train);
  const int64_t b = write_parts(validation, text, parts.validation);
  std::printf("%s: %s for training, %s for validation (every 10th of 20 blocks)\n", in.c_str(),
              format_bytes(a).c_str(), format_bytes(b).c_str());
  return 0;
}

int tokenize(const TokenizeOptions& o, const std::string& tokenizer_path) {
  const std::unique_ptr<text::Tokenizer> tokenizer = text::open_tokenizer(tokenizer_path);
  OutputPaths paths;
  paths.input("the text", o.text), paths.file("token file", o.out);
  if (tokenizer_path != "byte") paths.input("--tokenizer", tokenizer->path());
  if (o.format == TokenizeOptions::Format::megatron) paths.file("its index", data::indexed_names(o.out).idx);
  paths.file("its unfinished form", o.out + ".partial");
  paths.require_distinct();
  const data::TokenFile text(o.text, {.token_bytes = 2});  // any width; a token file is an error
  require(text.kind() == data::TokenFile::Kind::bytes, Exit::data,
          "{}: contains {} tokens ({}) instead of text; give the original text", o.text, text.size(),
          data::name_of(text.kind()));
  if (text::is_json_lines(o.text) && !tokenizer->end_of_text())
    warn("the tokenizer {} has no end-of-text token: documents are not separated", tokenizer_path);
  launcher::Job::catch_signals();
  const TokenizeResult made = tokenize_file(*tokenizer, o);
  std::printf("%s\n", data::TokenFile(o.out).describe().c_str());
  std::printf("%lld document%s, %s in %.3f s (%.1f MB/s) with %s\n", static_cast<long long>(made.documents),
              made.documents == 1 ? "" : "s", format_bytes(made.bytes).c_str(), made.seconds,
              double(made.bytes) / 1e6 / std::max(made.seconds, 1e-9), tokenizer->describe().c_str());
  return 0;
}

int ngrams(const std::string& train, const std::string& validation, const std::string& key) {
  const std::string a = read_text(train, key), b = read_text(validation, key);
  const std::vector<double> losses = data::ngram_losses(data::bytes_of(a), data::bytes_of(b));
  for (size_t n = 0; n < losses.size(); ++n) std::printf("%zu-gram  %.4f nats per byte\n", n + 1, losses[n]);
  return 0;
}

// Options of the subcommands.
struct DataOptions {
  std::string in, train, validation, tokenizer = "byte";
  TokenizeOptions tokenizing;
  int threads = 0;
  InspectData inspected;
};

CLI::App* add_split(CLI::App& app, DataOptions& o) {
  CLI::App* command =
      app.add_subcommand("split",
                         "split a text into training and validation parts by a fixed rule; of an indexed "
                         "data set (.bin with .idx) or a .jsonl, every tenth document goes to validation");
  command->add_option("text", o.in, "text, .jsonl or indexed data set")->required();
  command->add_option("--train", o.train, "output file of the training part")->required();
  command->add_option("--validation", o.validation, "output file of the validation part")->required();
  command->footer("Example: cleave data split corpus.txt --train train.txt --validation validation.txt");
  return command;
}

CLI::App* add_tokenize(CLI::App& app, DataOptions& o) {
  CLI::App* command = app.add_subcommand("tokenize",
                                         "tokenize a text or the documents of a .jsonl into a token file; "
                                         "each document ends with the tokenizer's end-of-text token");
  command->add_option("text", o.tokenizing.text, "text, or .jsonl with one document per line")->required();
  command->add_option("bin", o.tokenizing.out, "output token file")->required();
  command
      ->add_option("--tokenizer", o.tokenizer,
                   "byte, a tokenizer.json or tokenizer.model, or a folder with one")
      ->capture_default_str();
  command
      ->add_option_function<std::string>(
          "--format",
          [&o](const std::string& name) {
            using Format = TokenizeOptions::Format;
            o.tokenizing.format = name == "megatron" ? Format::megatron : Format::llmc;
          },
          "llmc: .bin with the vocabulary size; megatron: .bin with .idx, which stores document boundaries")
      ->check(one_of({"llmc", "megatron"}))
      ->default_str("llmc");
  command->add_option("--threads", o.threads, "encoder threads (default: one per core)")
      ->check(integer(1, kMostThreads));
  command->add_option("--jsonl_key", o.tokenizing.key, "name of the text field in a .jsonl")
      ->capture_default_str();
  command->footer("Example: cleave data tokenize corpus.txt corpus.bin --tokenizer tokenizer.json");
  return command;
}

CLI::App* add_inspect(CLI::App& app, DataOptions& o) {
  CLI::App* command = app.add_subcommand("inspect",
                                         "print kind, size, vocabulary, documents and loss mask of a text or "
                                         "token file; with --at, its tokens and document boundaries");
  command->add_option("file", o.inspected.file, "text or token file")->required();
  command->add_option(
      "--tokenizer", o.inspected.tokenizer,
      "show the tokens as text with a tokenizer.json or tokenizer.model, or a folder with one");
  add_token_bytes(*command, o.inspected.token_bytes);
  command->add_option("--jsonl_key", o.inspected.key, "name of the text field in a .jsonl")
      ->capture_default_str();
  command->add_option("--at", o.inspected.at, "position of the first token to show")->check(integer(0));
  command->add_option("--count", o.inspected.count, "number of tokens to show")
      ->capture_default_str()
      ->check(integer(1, 1 << 20));
  command->footer("Example: cleave data inspect corpus.bin --at 1000 --count 20");
  return command;
}

CLI::App* add_ngrams(CLI::App& app, DataOptions& o) {
  CLI::App* command = app.add_subcommand("ngrams", "losses of 1- to 5-gram byte models, as a baseline");
  command->add_option("--train", o.train, "training text")->required();
  command->add_option("--validation", o.validation, "validation text")->required();
  command->add_option("--jsonl_key", o.tokenizing.key, "name of the text field in a .jsonl")
      ->capture_default_str();
  command->footer("Example: cleave data ngrams --train train.txt --validation validation.txt");
  return command;
}

}  // namespace

int run_data(const Arguments& arguments) {
  CLI::App app(
      "Text and token files.\n"
      "Example: cleave data split corpus.txt --train train.txt --validation validation.txt",
      "data");
  app.require_subcommand(1);
  DataOptions o;
  o.tokenizing.format = TokenizeOptions::Format::llmc;
  const CLI::App *split_command = add_split(app, o), *tokenize_command = add_tokenize(app, o);
  add_inspect(app, o);
  const CLI::App* ngram_command = add_ngrams(app, o);
  if (!parse(app, arguments)) return 0;
  if (*split_command) return split(o.in, o.train, o.validation);
  if (*tokenize_command) {
    o.tokenizing.threads = threads_of_process(o.threads).threads, o.tokenizing.shown = true;
    return tokenize(o.tokenizing, o.tokenizer);
  }
  if (*ngram_command) return ngrams(o.train, o.validation, o.tokenizing.key);
  return inspect_data(o.inspected);
}

}  // namespace cleave::app
