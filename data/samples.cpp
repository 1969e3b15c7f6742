#include "data/samples.h"

#include "data/packed_documents.h"
#include "data/windows.h"

namespace cleave::data {

std::unique_ptr<Samples> samples_of(const TokenFile& file, const SampleOptions& o) {
  require(o.seq_len >= 1, Exit::usage, "--seq_len: must be at least 1 (got {})", o.seq_len);
  require(file.documents() || !(o.pack || o.document_mask), Exit::data,
          "{}: has no document boundaries ({}), which {} needs; convert it to an indexed data set (NAME.bin "
          "with NAME.idx), or remove the option",
          file.name(), name_of(file.kind()), o.pack ? "--pack" : "--document_mask");
  if (o.pack) return std::make_unique<PackedDocuments>(file, o.seq_len);
  return std::make_unique<Windows>(windows_of(file, o.seq_len, o.fill_last));
}

}  // namespace cleave::data
