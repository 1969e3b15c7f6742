#include "runtime/host_records.h"

#include "device/copy.h"

namespace cleave {

HostRecords::HostRecords(std::vector<Record> records, Memory& memory, Stream& stream)
    : records_(std::move(records)), here_(records_), stream_(stream) {
  if (!memory.device().is_cuda()) return;
  for (Record& r : here_) {
    if (r.data.memory() != MemoryKind::device) continue;
    copies_.push_back(memory.allocate(MemoryKind::host, Category::staging, r.data.dtype(), r.data.shape(),
                                      "a checkpoint's record"));
    copy(copies_.back(), r.data, stream_);
    r.data = copies_.back();
  }
  stream_.synchronize();
}

void HostRecords::store() {
  for (size_t i = 0; i < records_.size(); ++i)
    if (here_[i].data.raw() != records_[i].data.raw()) copy(records_[i].data, here_[i].data, stream_);
  stream_.synchronize();
}

}  // namespace cleave
