// cleave data inspect: what a text or a token file holds.
#pragma once
#include <cstdint>
#include <string>

namespace cleave::app {

struct InspectData {
  std::string file, tokenizer;  // none: ids are shown, and a text's bytes
  int64_t at = -1;              // the first token to show; below 0: none
  int64_t count = 64;
  std::string key = "text";  // of documents in lines of JSON
  int token_bytes = 0;       // of a file without a header
};

int inspect_data(const InspectData& options);

}  // namespace cleave::app
