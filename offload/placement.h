// Homes of the training state. Offload is a value of this struct; optimizers and layers do not depend on it.
#pragma once
#include <filesystem>
#include <string>

#include "device/tensor.h"
#include "offload/disk_file.h"

namespace cleave::offload {

// Transfer of state with its home on disk.
struct DiskHome {
  std::filesystem::path folder;
  std::string name = "optimizer state";  // for messages
  std::string key = "nvme_path";         // of the folder, for messages
  MemoryKind staging = MemoryKind::pinned;
  int buffers = 4;                        // tiles in memory at a time
  int64_t tile_numel = int64_t{1} << 21;  // maximum elements per tile
  DiskOptions options;
};

// Homes of a unit's shards between their uses.
struct ShardHome {
  MemoryKind parameters = MemoryKind::device;  // working copy
  MemoryKind gradients = MemoryKind::device;   // reduced gradients
};

// Processor that updates state with a home other than the device.
enum class UpdateSide : uint8_t { host, device };

struct Placement {
  MemoryKind optimizer = MemoryKind::device;  // master weights and moments
  double ratio = 1;  // share of each slice's elements with this home; the rest is on the device
  UpdateSide update = UpdateSide::host;  // for those elements; the device updates the rest
  DiskHome disk;                         // if optimizer is disk
};

}  // namespace cleave::offload
