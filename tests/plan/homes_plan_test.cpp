// Memory of off-device training state, and transfers of its update.
#include <gtest/gtest.h>

#include "tests/plan/planned.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

TEST(Plan, EqualsMeasurementsForEveryHome) {
  for (const int data : {1, 2})
    for (const bool optimizer : {false, true})
      for (const bool exact : {false, true})
        for (const bool hybrid : {false, true}) {
          const Scratch disk;
          config::DsConfig c = config_for(data, 1, 2);
          c.zero.stage = 3, c.zero.overlap_comm = true, c.exact_sums = exact;
          if (hybrid) c.zero.mics_shard_size = 1;
          c.zero.offload_param.device =
              exact == hybrid ? config::OffloadDevice::cpu : config::OffloadDevice::nvme;
          c.zero.offload_param.nvme_path = disk.folder(), c.zero.offload_param.max_in_cpu = 900;
          c.zero.offload_param.pin_memory = !hybrid;
          if (optimizer) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
          for (const config::OffloadUpdate update :
               {config::OffloadUpdate::host, config::OffloadUpdate::device}) {
            if (!optimizer && c.offload_update == config::OffloadUpdate::host) break;
            c.offload_update = update;
            expect_planned(
                c, data, [] { return small_gpt(); },
                fmt::format("data {} optimizer {} exact {} hybrid {} update on the {}", data, optimizer,
                            exact, hybrid, update));
          }
        }
}

// Three pieces in transit, of the largest unit's slice: master and both moments, and other off-device
// operands.
TEST(Plan, CountsTheStagingOfAnUpdateThatStreamsThroughTheDevice) {
  for (const int stage : {1, 2})
    for (const bool half : {false, true}) {
      config::DsConfig c = config_for(2);
      c.zero.stage = stage, c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
      if (half) c.precision = config::Precision::bf16;
      const Make model = [half] { return small_gpt(half ? DType::bf16 : DType::fp32); };
      const MemoryTable host = plan_for(c, 2, model).ranks[0].memory;
      c.offload_update = config::OffloadUpdate::device;
      MemoryTable device = plan_for(c, 2, model).ranks[0].memory;
      int64_t largest = 0;
      for (const UnitSpec& u : model().units())
        largest = std::max(largest, zero::FlatLayout(u, 2).numel() / 2);
      const int64_t gradient = stage == 2 ? (half ? 2 : 4) : 0;
      int64_t& staging = device.at(MemoryKind::device, Category::staging);
      const int64_t without = host.at(MemoryKind::device, Category::staging);
      EXPECT_EQ(staging - without, 3 * largest * (12 + gradient)) << "stage " << stage << " half " << half;
      staging = without;
      EXPECT_EQ(device, host);
    }
}

TEST(Plan, CountsTransfersOfAnOffloadedUpdate) {
  for (const int stage : {1, 2})
    for (const config::OptimizerType optimizer :
         {config::OptimizerType::adamw, config::OptimizerType::lamb}) {
      config::DsConfig c = config_for(2);
      c.precision = config::Precision::bf16, c.zero.stage = stage, c.optimizer.type = optimizer;
      const Make model = [] { return small_gpt(DType::bf16); };
      EXPECT_EQ(plan_for(c, 2, model).ranks[0].update.state, 0);
      c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
      const plan::RankPlan rank = plan_for(c, 2, model).ranks[0];
      const zero::UpdateBytes& b = rank.update;
      const int64_t numel = rank.memory.at(MemoryKind::pinned, Category::master) / 4;
      EXPECT_GT(numel, 0);
      EXPECT_EQ(b.state, 12 * numel);
      EXPECT_EQ(b.read, (c.optimizer.type == config::OptimizerType::lamb ? 24 : 12) * numel);
      EXPECT_EQ(b.written, 12 * numel);
      EXPECT_EQ(b.gradients_here, stage == 1 ? 2 * numel : 0);
      EXPECT_EQ(b.gradients_at_home, stage == 2 ? 2 * numel : 0);
      EXPECT_EQ(b.weights_here, 2 * numel);
      EXPECT_EQ(b.weights_at_home, 0);
    }
}

}  // namespace
}  // namespace cleave::testing
