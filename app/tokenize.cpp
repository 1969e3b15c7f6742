#include "app/tokenize.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "app/work_progress.h"
#include "checkpoint/checksum.h"
#include "core/file_owner.h"
#include "core/units.h"
#include "core/user_cache.h"
#include "data/indexed_file.h"
#include "data/text/corpus.h"
#include "data/token_file.h"
#include "data/token_writer.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Identifies a text and its version without reading all of it.
uint64_t digest_of(const std::string& text, const text::Tokenizer& tokenizer, const std::string& key) {
  constexpr int64_t kSample = 1 << 16, kSamples = 16;
  const InputFile file(text, Exit::data);
  struct stat about {};
  ::stat(text.c_str(), &about);
  checkpoint::Checksum sum;
  const int64_t facts[] = {2,  // version of this list
                           file.size(), about.st_mtim.tv_sec, about.st_mtim.tv_nsec,
                           int64_t(tokenizer.digest())};
  sum.add(reinterpret_cast<const std::byte*>(facts), sizeof facts);
  sum.add(reinterpret_cast<const std::byte*>(key.data()), int64_t(key.size()));
  std::vector<std::byte> bytes(size_t(std::min(kSample, file.size())));
  for (int64_t i = 0; i < kSamples; ++i) {
    file.read((file.size() - int64_t(bytes.size())) / (kSamples - 1) * i, bytes);
    sum.add(bytes.data(), int64_t(bytes.size()));
  }
  return sum.value();
}

// Creates the folder, for the user alone if it belongs to the user. Error(usage) if others could
// have put files there.
void make_folder(const TokenCache& cache) {
  const std::string& path = cache.folder;
  std::error_code error;
  fs::create_directories(cache.of_user ? fs::path(path).parent_path() : fs::path(path), error);
  if (cache.of_user && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    error = {errno, std::generic_category()};
  require(!error, Exit::usage, "{}: the folder for tokens cannot be created: {}", path, error.message());
  if (!cache.of_user) return;
  struct stat folder {};
  const bool is_private = ::stat(path.c_str(), &folder) == 0 && S_ISDIR(folder.st_mode) &&
                          folder.st_uid == ::geteuid() && (folder.st_mode & S_IWOTH) == 0;
  require(is_private, Exit::usage,
          "{}: other users can write to the folder for tokens (got owner {}, mode {:o}, expected a folder of "
          "user {}, mode 700); give --output, or set XDG_CACHE_HOME to a folder of yours",
          path, folder.st_uid, folder.st_mode & 07777u, ::geteuid());
}

bool is_token_file(const std::string& path) {
  try {
    return is_trusted_file(path) && is_trusted_file(data::indexed_names(path).idx) &&
           data::TokenFile(path).kind() != data::TokenFile::Kind::bytes;
  } catch (const Error&) {
    return false;  // created again
  }
}

}  // namespace

namespace {

template <class Writer>
TokenizeResult tokenize_into(Writer& writer, const text::Tokenizer& tokenizer, const TokenizeOptions& o) {
  const auto begin = Clock::now();
  TokenizeResult result;
  result.bytes = InputFile(o.text, Exit::data).size();
  WorkProgress progress(o.shown);
  text::CorpusSink sink;
  sink.tokens = [&](std::span<const int32_t> ids) { writer.append(ids); };
  sink.end_document = [&] { writer.end_document(); };
  sink.progress = [&](int64_t bytes) {
    require(!launcher::Job::stop_requested(), Exit::stopped,
            "stopped on request; {} is not tokenized, and its partial output is removed", o.text);
    o.alive();
    progress.at(double(bytes) / double(std::max<int64_t>(result.bytes, 1)), [&](double seconds) {
      return fmt::format("tokenized {} of {}, {:.1f} MB/s", format_bytes(bytes), format_bytes(result.bytes),
                         double(bytes) / 1e6 / seconds);
    });
  };
  text::tokenize_corpus(tokenizer, {.path = o.text, .key = o.key, .threads = o.threads}, sink);
  writer.finish();
  result.documents = writer.documents(), result.seconds = seconds_since(begin);
  return result;
}

}  // namespace

TokenizeResult tokenize_file(const text::Tokenizer& tokenizer, const TokenizeOptions& o) {
  if (o.format == TokenizeOptions::Format::llmc) {
    data::TokenWriter writer(o.out, tokenizer.vocab_size());
    return tokenize_into(writer, tokenizer, o);
  }
  data::IndexedWriter writer(o.out, tokenizer.vocab_size());
  return tokenize_into(writer, tokenizer, o);
}

bool is_text(const std::string& path) {
  // The token width does not matter for this check.
  return !path.empty() && data::TokenFile(path, {.token_bytes = 2}).kind() == data::TokenFile::Kind::bytes;
}

TokenCache token_cache(const std::string& output) {
  if (!output.empty()) return {(fs::path(output) / "tokens").string()};
  if (const std::string folder = user_cache_folder(); !folder.empty()) return {folder, true};
  return {(fs::temp_directory_path() / fmt::format("cleave-tokens-{}", ::geteuid())).string(), true};
}

std::string cached_tokens(launcher::Job& job, const text::Tokenizer& tokenizer, const std::string& text,
                          const std::string& key, const TokenCache& cache, bool quiet) {
  std::string out;
  std::exception_ptr failure;
  const auto named = [&] {
    return (fs::path(cache.folder) / fmt::format("{}.{:016x}.bin", fs::path(text).filename().string(),
                                                 digest_of(text, tokenizer, key)))
        .string();
  };
  if (job.replaces()) {  // the other ranks train already
    out = named();
    require(is_token_file(out), Exit::data,
            "{}: the tokens of this run are missing (expected {}); start the job again", text, out);
    return out;
  }
  if (job.first()) try {
      out = named();
      make_folder(cache);
      if (is_token_file(out)) {
        if (!quiet)
          std::fprintf(stderr, "%s: uses tokens of an earlier run, %s\n", text.c_str(), out.c_str());
      } else {
        std::error_code error;
        // Another job may create the same tokens meanwhile.
        const data::IndexedNames mine = data::indexed_names(fmt::format("{}.{}", out, ::getpid()));
        auto said = Clock::now();
        const TokenizeResult made =
            tokenize_file(tokenizer, {.text = text,
                                      .out = mine.bin,
                                      .key = key,
                                      .threads = threads_of_process(0, job.info().local_size).threads,
                                      .shown = !quiet,
                                      // The other ranks wait for each of these messages, so that
                                      // none reaches its deadline.
                                      .alive = [&] {
                                        if (seconds_since(said) > 1) job.any(true), said = Clock::now();
                                      }});
        fs::rename(mine.idx, data::indexed_names(out).idx, error);
        if (!error) fs::rename(mine.bin, out, error);  // last, because it stands for both files
        require(!error, Exit::data, "{}: cannot be written: {}", out, error.message());
        if (!quiet)
          std::fprintf(stderr, "%s: tokenized in %.1f s into %s\n", text.c_str(), made.seconds, out.c_str());
      }
    } catch (...) {
      failure = std::current_exception();
    }
  while (job.any(false)) {
  }
  job.together(Exit::data, [&] {
    if (failure) std::rethrow_exception(failure);
  });
  return job.from_first(out);
}

}  // namespace cleave::app
