// cleave data inspect: shows the contents of a text or token file.
#pragma once
#include <cstdint>
#include <string>

namespace cleave::app {

struct InspectData {
  std::string file, tokenizer;  // empty tokenizer: show ids, and bytes of a text
  int64_t at = -1;              // first token to show; negative: none
  int64_t count = 64;
  std::string key = "text";  // key of documents in JSON lines
  int token_bytes = 0;       // for files without a header
};

int inspect_data(const InspectData& options);

}  // namespace cleave::app
