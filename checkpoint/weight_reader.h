// Weights of a model that others wrote, read as the records of a checkpoint are: only the elements that a
// rank holds, in pieces, straight to where they live.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_files.h"

namespace cleave::checkpoint {

inline constexpr int64_t kWeightPiece = int64_t{1} << 21;  // elements in memory at a time

// A parameter, and what it is in the files.
struct WeightName {
  std::string tensor;          // the parameter's own name
  std::vector<int64_t> shape;  // of the whole parameter
  std::string file_name;
  bool transposed = false;  // a matrix whose rows are the parameter's columns
};

struct WeightNames {
  std::vector<WeightName> tensors;  // all of them must be there
  // May be there, with the values of a parameter that it is tied to: the file's name, and the parameter's.
  std::vector<std::pair<std::string, std::string>> tied = {};
  // Ends of names that are no parameters: buffers that models make themselves.
  std::vector<std::string> buffers = {};
};

class WeightReader {
 public:
  // Throws Error(checkpoint) that names every tensor that is missing, that is there and is no parameter, or
  // that has another shape or a type that is no float of 16 bits and more. `files` outlives the reader.
  WeightReader(const WeightFiles& files, const WeightNames& names);

  // Whether the files have the parameter, as they have all that the names say.
  bool has(const std::string& tensor) const { return sources_.contains(tensor); }
  // Writes a record of kind "master" of a parameter, from the files' values in fp32. Reads only the record's
  // elements. Error(checkpoint) with the tensor's name, and how many, for values that are no finite numbers.
  void read(const Record& record) const;
  // That every tied tensor in the files has its parameter's values, which takes reading both whole.
  // Error(checkpoint) otherwise.
  void require_tied() const;

  // "fp32", "bf16", or "bf16 and fp32": the types of the parameters.
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
