// Conversion of texts on the command line to token files.
#pragma once
#include <functional>
#include <string>

#include "data/text/tokenizer.h"
#include "launcher/job.h"

namespace cleave::app {

struct TokenizeOptions {
  std::string text, out;
  std::string key = "text";  // of a document in JSON lines
  // Megatron: .bin and .idx, with document boundaries. llmc: .bin, with the vocabulary size.
  enum class Format { megatron, llmc } format = Format::megatron;
  int threads = 1;
  bool shown = false;  // print progress on stderr
  // Called from time to time during the work.
  std::function<void()> alive = [] {};
};

struct TokenizeResult {
  int64_t documents = 0, bytes = 0;
  double seconds = 0;
};

// Writes the token file `out`, which gets its name when it is complete. Error(data);
// Error(stopped), without a file, if a signal that Job::catch_signals() caught requests it.
TokenizeResult tokenize_file(const text::Tokenizer& tokenizer, const TokenizeOptions& options);

// Returns true if a file is a text, which needs tokenization unless the tokenizer is "byte".
bool is_text(const std::string& path);

// A folder of token files. A folder of the user, as opposed to that of a run, is created for this
// user alone; write permission of others is an error.
struct TokenCache {
  std::string folder;
  bool of_user = false;
};
// Returns the default folder of token files: "tokens" in the output folder of a run, else
// $XDG_CACHE_HOME/cleave, ~/.cache/cleave, or a folder in /tmp; the last three belong to the user.
TokenCache token_cache(const std::string& output);

// Returns the token file of a text, created by the first rank if it is missing. Its name has a
// digest of the text's size, time and samples, the tokenizer, and the key. A file that another user
// could have written is created again. Collective, on the connected job.
std::string cached_tokens(launcher::Job& job, const text::Tokenizer& tokenizer, const std::string& text,
                          const std::string& key, const TokenCache& cache, bool quiet);

}  // namespace cleave::app
