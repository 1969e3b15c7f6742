// What a run tells about its own steps: times, arithmetic, collectives, memory and state.
#include "config/keys.h"

namespace cleave::config {
namespace {

// Collectives under the names that DeepSpeed logs them with; what follows ours says which function of
// PyTorch.
const std::vector<std::string> kCollectiveNames = {"all_reduce",
                                                   "all_reduce_coalesced",
                                                   "inference_all_reduce",
                                                   "all_gather",
                                                   "all_gather_base",
                                                   "all_gather_into_tensor",
                                                   "all_gather_coalesced",
                                                   "all_gather_object",
                                                   "reduce_scatter",
                                                   "reduce_scatter_base",
                                                   "reduce_scatter_tensor",
                                                   "all_to_all",
                                                   "all_to_all_single",
                                                   "broadcast",
                                                   "broadcast_object_list",
                                                   "send",
                                                   "recv",
                                                   "isend",
                                                   "irecv",
                                                   "barrier",
                                                   "reduce",
                                                   "gather",
                                                   "scatter",
                                                   "monitored_barrier"};

}  // namespace

void describe_tools(Keys& k, DsConfig& c) {
  k.section("", "");
  k.honoured(
      "wall_clock_breakdown", &c.wall_clock_breakdown,
      "prints the mean time of each phase of a step every steps_per_print steps, or at the end; each step "
      "then waits for its own work; in cleave train");
  k.honoured(
      "memory_breakdown", &c.memory_breakdown,
      "prints memory by category after the first step and every steps_per_print steps; in cleave train");
  k.honoured("dump_state", &c.dump_state,
             "prints every effective value and what each unit of parameters takes where, at the start");

  k.section("flops_profiler", "what each layer costs");
  FlopsProfilerConfig& f = c.flops_profiler;
  k.honoured("enabled", &f.enabled,
             "prints parameters, arithmetic and time of each layer for one step; in cleave train");
  k.honoured("profile_step", &f.profile_step, "the step after so many steps is profiled").at_least(0);
  k.honoured("module_depth", &f.module_depth, "0: the whole model only; otherwise a row a layer")
      .at_least(-1);
  k.honoured("top_modules", &f.top_modules,
             "so many kinds of layers are named by parameters, arithmetic and time")
      .at_least(0);
  k.honoured("detailed", &f.detailed, "a row a layer");
  k.honoured("output_file", &f.output_file, "where the table goes; empty or null: with the other lines")
      .or_null();
  k.no_effect("recompute_fwd_factor", "n=0.0", "what is computed again is measured, not assumed");

  k.section("comms_logger", "a log of collectives; the section alone switches it on");
  CommsLoggerConfig& l = c.comms_logger;
  k.honoured("enabled", &l.enabled,
             "counts every collective and its time, and prints a table at the end; in cleave train");
  k.honoured("prof_all", &l.prof_all, "all collectives, not those of prof_ops only");
  k.honoured("prof_ops", &l.prof_ops, "the collectives to log when prof_all is false")
      .one_of(kCollectiveNames);
  k.honoured("verbose", &l.verbose, "a line a call");
  k.honoured("debug", &l.debug, "tells calls apart by group and purpose");
}

}  // namespace cleave::config
