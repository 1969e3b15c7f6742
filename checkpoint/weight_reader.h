// Reads published weights as checkpoint records: only the elements that a rank holds, in pieces, directly to
// their destination.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_files.h"

namespace cleave::checkpoint {

inline constexpr int64_t kWeightPiece = int64_t{1} << 21;  // elements in memory at a time

// A parameter and its name in the files.
struct WeightName {
  std::string tensor;          // parameter name in Cleave
  std::vector<int64_t> shape;  // of the whole parameter
  std::string file_name;
  bool transposed = false;  // the file's rows are the parameter's columns
};

struct WeightNames {
  std::vector<WeightName> tensors;  // all must exist
  // Optional tensors with the values of the parameter that they are tied to: name in the file, parameter.
  std::vector<std::pair<std::string, std::string>> tied = {};
  // Suffixes of names of buffers, which are not parameters; models create them.
  std::vector<std::string> buffers = {};
};

class WeightReader {
 public:
  // Throws Error(checkpoint), which names every tensor that is missing, extra, or of another shape, and every
  // tensor with a type other than floats of at least 16 bits. `files` must outlive the reader.
  WeightReader(const WeightFiles& files, const WeightNames& names);

  // True if the files have the parameter. They have all parameters of the names.
  bool has(const std::string& tensor) const { return sources_.contains(tensor); }
  // Writes a record of kind "master" from the file values as fp32. Reads only the record's elements. Throws
  // Error(checkpoint) with the tensor's name and the number of non-finite values, if any.
  void read(const Record& record) const;
  // Checks that every tied tensor in the files equals its parameter; reads both in full. Throws
  // Error(checkpoint).
  void require_tied() const;

  // Types of the parameters: "fp32", "bf16", or "bf16 and fp32".
  std::string types() const;

 private:
  struct Source {
    WeightName name;
    const TensorFile* file = nullptr;
    StoredTensor stored;
  };
  Source source_of(const WeightName& name) const;
  const Source& source(const std::string& tensor) const;
  [[noreturn]] void refuse_values(const Source& source) const;
  void fill(const Source& source, const Elements& elements, Range window, float* to) const;

  const WeightFiles& files_;
  std::map<std::string, Source> sources_;  // by parameter
  std::vector<std::pair<Source, std::string>> tied_;
};

}  // namespace cleave::checkpoint
