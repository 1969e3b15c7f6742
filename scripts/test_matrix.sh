#!/usr/bin/env bash
# Installs a wheel in empty environments with different versions of Python and torch, and tests it there: import, report,
# and ten tests that train on up to four ranks of this machine. Prints a table.
#   scripts/test_matrix.sh WHEEL [LOG_FOLDER]
# PYTHONS and TORCHES select versions. Needs uv in PATH, and 20 GB for one torch; not part of scripts/test.sh because of
# the 40 GB to download.
set -euo pipefail
wheel=$(realpath -e "${1:?usage: scripts/test_matrix.sh WHEEL [LOG_FOLDER]}")
mkdir -p "${2:-build/matrix}"
logs=$(realpath "${2:-build/matrix}")
cd "$(dirname "$0")/.."
command -v uv >/dev/null || { echo "error: uv: not found in PATH; run pip install uv" >&2; exit 2; }
read -ra pythons <<<"${PYTHONS:-3.10 3.11 3.12 3.13 3.14}"
read -ra torches <<<"${TORCHES:-2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0}" # the newest of each minor version
tests=(
  engine_test.Engine.test_losses_and_norms_are_those_of_torch_at_every_stage
  engine_test.Engine.test_a_checkpoint_continues_at_another_stage_on_other_ranks
  engine_test.Engine.test_activations_may_be_computed_again
  init_test.Init.test_copies_after_the_context_are_whole
  pipeline_test.Pipelines.test_a_checkpoint_continues_at_another_number_of_stages
  states_test.States.test_gathered_parameters_are_whole_and_a_ranks_changes_reach_all
  states_test.States.test_states_of_parameters_are_read_and_written_whole
  surface_test.Surface.test_arguments_are_honoured_or_errors_with_their_name
  surface_test.Surface.test_weights_in_16_bits_are_saved_whole
  trained_test.Trained.test_parameters_outside_of_the_module_train_and_resume # uses zero_to_fp32
)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export UV_CACHE_DIR=$work/cache OMP_NUM_THREADS=1
unset PYTHONPATH CLEAVE_LIBRARY

# cell PYTHON TORCH LOG: prints the result of one environment.
cell() {
  local environment=$work/environment bin=$work/environment/bin site
  rm -rf "$environment"
  uv venv --quiet --python "$1" "$environment" >"$3" 2>&1 || { echo "no Python"; return; }
  if ! uv pip install --quiet --python "$bin/python" --only-binary :all: "torch==$2" numpy "$wheel" >>"$3" 2>&1; then
    if grep -q "has no wheels with a matching Python" "$3"; then echo "no torch"; else echo "not installed"; fi
    return
  fi
  (
    cd "$work"
    "$bin/python" -c "import cleave; print(cleave.__file__, cleave.__version__)" &&
      "$bin/cleave" report
  ) >>"$3" 2>&1 || { echo "no import"; return; }
  site=$("$bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
  if PYTHONPATH=tests/python CLEAVE_BUILD=$site/cleave "$bin/python" -m unittest -v "${tests[@]}" >>"$3" 2>&1; then
    sed -n 's/^Ran \([0-9]*\) tests.*/\1 passed/p' "$3"
  else
    tail -1 "$3"
  fi
}

failed=0
echo "| torch |$(printf ' Python %s |' "${pythons[@]}")"
echo "|---$(printf '|---%.0s' "${pythons[@]}")|"
for torch in "${torches[@]}"; do
  row="| $torch |"
  for python in "${pythons[@]}"; do
    result=$(cell "$python" "$torch" "$logs/python$python-torch$torch.log")
    case $result in *passed | "no torch") ;; *) failed=$((failed + 1)) ;; esac
    row+=" $result |"
  done
  echo "$row"
  rm -rf "$UV_CACHE_DIR"
done
[ "$failed" -eq 0 ]
