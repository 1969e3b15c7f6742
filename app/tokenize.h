// Texts of the command line as token files.
#pragma once
#include <functional>
#include <string>

#include "data/text/tokenizer.h"
#include "launcher/job.h"

namespace cleave::app {

struct TokenizeOptions {
  std::string text, out;
  std::string key = "text";  // of a document in a line of JSON
  // Megatron's .bin and .idx, which know where documents begin; or llm.c's .bin, which knows its vocabulary.
  enum class Format { megatron, llmc } format = Format::megatron;
  int threads = 1;
  bool shown = false;  // progress, on stderr
  // Called now and then while the work goes on.
  std::function<void()> alive = [] {};
};

struct TokenizeResult {
  int64_t documents = 0, bytes = 0;
  double seconds = 0;
};

// Writes the token file `out`; it appears under its name when it is complete. Error(data); Error(stopped),
// and nothing is written, where a signal that Job::catch_signals() caught asks for it.
TokenizeResult tokenize_file(const text::Tokenizer& tokenizer, const TokenizeOptions& options);

// Whether a file is a text, which a tokenizer other than "byte" makes tokens of.
bool is_text(const std::string& path);

// A folder of token files. One of this user, as opposed to one of a run, is made for this user alone, and an
// error where others can write to it.
struct TokenCache {
  std::string folder;
  bool of_user = false;
};
// Where token files go that nobody named a place for: "tokens" in the folder of a run's output, else
// $XDG_CACHE_HOME/cleave, else ~/.cache/cleave, else a folder in /tmp; these three are of the user.
TokenCache token_cache(const std::string& output);

// The token file of a text, made by the first rank unless it is there: its name has a digest of the text's
// size, time and samples of it, of the tokenizer, and of the key. One that another user could have written is
// made again. Collective, once the job is connected.
std::string cached_tokens(launcher::Job& job, const text::Tokenizer& tokenizer, const std::string& text,
                          const std::string& key, const TokenCache& cache, bool quiet);

}  // namespace cleave::app
