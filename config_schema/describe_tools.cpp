// Keys of reports about steps: times, arithmetic, collectives, memory and state.
#include "config_schema/keys.h"

namespace cleave::config {
namespace {

// Collective names in DeepSpeed's log. After ours come names of PyTorch functions.
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
  k.honoured("wall_clock_breakdown", &c.wall_clock_breakdown,
             "prints the mean time of each phase of a step every steps_per_print steps, or at the end; adds "
             "a synchronization per step, in scripts one per timer");
  k.honoured("memory_breakdown", &c.memory_breakdown,
             "prints memory by category after the first step and every steps_per_print steps");
  k.honoured("dump_state", &c.dump_state,
             "prints every effective value and the placement of each unit of parameters at the start");

  k.section("flops_profiler", "cost of each layer");
  FlopsProfilerConfig& f = c.flops_profiler;
  k.honoured("enabled", &f.enabled,
             "prints parameters, arithmetic and time of each layer for one step, in scripts of each module");
  k.honoured("profile_step", &f.profile_step, "number of steps before the profiled step").at_least(0);
  k.honoured(
       "module_depth", &f.module_depth,
       "0: the whole model only; otherwise one row per layer, in scripts per module of at most this depth "
       "(-1: any)")
      .at_least(-1);
  k.honoured("top_modules", &f.top_modules,
             "number of kinds of layers to list by parameters, arithmetic and time")
      .at_least(0);
  k.honoured("detailed", &f.detailed, "one row per layer");
  k.honoured("output_file", &f.output_file, "file of the table; empty or null: standard output").or_null();
  k.no_effect("recompute_fwd_factor", "n=0.0", "recomputation is measured, not assumed");

  k.section("comms_logger", "log of collectives; the section alone enables it");
  CommsLoggerConfig& l = c.comms_logger;
  k.honoured("enabled", &l.enabled, "counts and times every collective, and prints a table at the end");
  k.honoured("prof_all", &l.prof_all, "logs all collectives instead of prof_ops only");
  k.honoured("prof_ops", &l.prof_ops, "the collectives to log when prof_all is false")
      .one_of(kCollectiveNames);
  k.honoured("verbose", &l.verbose, "one line per call");
  k.honoured("debug", &l.debug, "separates calls by group and purpose");
}

}  // namespace cleave::config
