// Loss mask of the tokens of an indexed data set (data/indexed_file.h): its .mask.
#pragma once
#include <cstdint>
#include <string>

#include "core/input_file.h"
#include "core/range.h"

namespace cleave::data {

class LossMask {
 public:
  LossMask(const std::string& path, int64_t tokens);
  // For each token of the range, 1 if predicting it has a loss, else 0.
  void read(Range tokens, uint8_t* out) const;
  const std::string& path() const { return file_.path(); }
  void note_contents() { file_.note_contents(); }
  void require_unchanged() const { file_.require_unchanged(); }

 private:
  InputFile file_;
  int64_t tokens_;
};

}  // namespace cleave::data
