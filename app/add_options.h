// Command-line options that several commands share.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "app/options.h"
#include "config_schema/read_config.h"

namespace cleave::app {

// Adds --deepspeed_config, and --deepspeed with a file, as the Hugging Face Trainer takes it;
// without a file it is a flag of DeepSpeed scripts. Errors: two different files, and no file if one
// is required.
void add_config_option(CLI::App& app, std::string& config, const std::string& help, bool required);
void add_options(CLI::App& app, ModelOptions& options);
void add_token_bytes(CLI::App& app, int& token_bytes);
void add_document_mask(CLI::App& app, bool& document_mask);
void add_options(CLI::App& app, RankOptions& options);

// Values for "auto" and for missing keys of a ds_config, with the names and defaults of the Hugging
// Face Trainer. Commands without training accept them without listing them in their help.
enum class InHelp { yes, no };
void add_options(CLI::App& app, config::AutoValues& values, InHelp in_help = InHelp::yes);

// Adds --steps for commands without training: the length of a schedule that ends with the training.
void add_steps_option(CLI::App& app, config::AutoValues& values);

}  // namespace cleave::app
