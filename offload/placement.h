// Where each kind of training state has its home. Offload is a value of this struct, not a way to optimize:
// no optimizer and no layer knows the word.
#pragma once
#include <filesystem>
#include <string>

#include "device/tensor.h"
#include "offload/disk_file.h"

namespace cleave::offload {

// How state that lives on disk gets there and back.
struct DiskHome {
  std::filesystem::path folder;
  std::string name = "optimizer state";  // in messages
  std::string key = "nvme_path";         // of the folder, in messages
  MemoryKind staging = MemoryKind::pinned;
  int buffers = 4;                        // tiles in memory at a time
  int64_t tile_numel = int64_t{1} << 21;  // elements of a tile, at most
  DiskOptions options;
};

// Where a unit's shards live between their uses.
struct ShardHome {
  MemoryKind parameters = MemoryKind::device;  // of the working copy
  MemoryKind gradients = MemoryKind::device;   // when they are reduced
};

// Which of a rank's two processors updates state whose home is not the device.
enum class UpdateSide : uint8_t { host, device };

struct Placement {
  MemoryKind optimizer = MemoryKind::device;  // master weights and moments
  double ratio = 1;                           // of every slice's elements live there, the rest on the device
  UpdateSide update = UpdateSide::host;       // of those elements; the rest is updated where it is
  DiskHome disk;                              // where optimizer is disk
};

}  // namespace cleave::offload
