# Sourced by make.sh of an example, behind its usage(), with its arguments: finds $folder, $python and $atelier,
# and gives once().

case ${1-} in
  '' | -h | --help) usage; exit 0 ;;
  -*) echo "error: make.sh: '$1' is no option; see make.sh --help" >&2; exit 2 ;;
esac
folder=$1
python=${PYTHON-python3}
atelier=${ATELIER-$here/../../build/release/bin/atelier}
mkdir -p "$folder"

# once NAME COMMAND...: runs it unless an earlier call finished it.
once() {
  local name=$1 start=$SECONDS
  shift
  [[ ! -e $folder/$name.done ]] || return 0
  echo "make: $name"
  "$@" && echo "$((SECONDS - start)) s" >"$folder/$name.done"
}

# Threads that wait leave the cores to others; the number of threads is a part of the result's bits.
export OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1
