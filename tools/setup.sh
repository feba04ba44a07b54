#!/usr/bin/env bash
# Installs what a task needs on Debian or Ubuntu. Fast and silent when all of it is there.
#   tools/setup.sh build|lint|test|arm64
set -euo pipefail

task=${1:-build}
least_cargo=1.82

build_packages=(g++ cmake ninja-build ccache git ca-certificates pkg-config python3 python3-pip
  nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libxxhash-dev libexpected-dev
  liburing-dev libgtest-dev libgmock-dev libbenchmark-dev)
lint_packages=(clang-format clang-tidy)
# Debian keeps the sanitizer and fuzzer runtimes of its default clang in a package of its own.
test_packages=(clang)
# A cross build, and an emulator to run it.
arm64_packages=(g++-aarch64-linux-gnu qemu-user googletest)

say() { printf 'setup: %s\n' "$*" >&2; }

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

# Runs as root, or says what to run.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo "$@"
  elif command -v sudo >/dev/null && [ -t 0 ] && [ -t 2 ]; then
    say "this needs root: $*"
    sudo "$@"
  else
    say "please run as root, then start again:"
    printf '  %s\n' "apt-get update && $*" >&2
    exit 1
  fi
}

apt_updated=no
apt_install() {
  if [ $apt_updated = no ]; then
    as_root apt-get update -qq
    apt_updated=yes
  fi
  say "installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_packages() {
  local wanted
  mapfile -t wanted < <(missing_packages "$@")
  [ ${#wanted[@]} = 0 ] || apt_install "${wanted[@]}"
}

version_at_least() {  # version_at_least HAVE LEAST
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

cargo_is_recent() {
  command -v cargo >/dev/null || return 1
  local version
  version=$(cargo --version 2>/dev/null | awk '{print $2}')
  [ -n "$version" ] && version_at_least "$version" "$least_cargo"
}

candidate_version() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/{print $2}'; }

# The newest packaged cargo that will do: Debian 12 has one under the name cargo-web.
install_cargo() {
  cargo_is_recent && return
  if [ $apt_updated = no ]; then
    as_root apt-get update -qq
    apt_updated=yes
  fi
  local name version
  for name in cargo cargo-web; do
    version=$(candidate_version "$name")
    if [ -n "$version" ] && [ "$version" != "(none)" ] && version_at_least "$version" "$least_cargo"; then
      apt_install "$name" "${name/cargo/rustc}"
      hash -r
      cargo_is_recent && return
    fi
  done
  say "cargo $least_cargo or newer is needed (found: $(cargo --version 2>/dev/null || echo none))"
  say "install it from https://rustup.rs, then start again"
  exit 1
}

check_node() {
  command -v node >/dev/null || say "note: node is not installed; nothing needs it yet (the web UI will)"
}

if ! command -v dpkg-query >/dev/null; then
  say "this is neither Debian nor Ubuntu; the names of the packages there are:"
  printf '  %s\n' "${build_packages[*]} ${lint_packages[*]} ${test_packages[*]} ${arm64_packages[*]}" >&2
  for tool in g++ cmake ninja cargo; do
    command -v $tool >/dev/null || { say "$tool is missing"; exit 1; }
  done
  exit 0
fi

case $task in
  build) install_packages "${build_packages[@]}" ;;
  lint) install_packages "${build_packages[@]}" "${lint_packages[@]}" ;;
  test)
    install_packages "${build_packages[@]}" "${lint_packages[@]}" "${test_packages[@]}"
    clang_major=$(clang -dumpversion | cut -d. -f1)
    install_packages "libclang-rt-$clang_major-dev"
    # Without a cross compiler for this machine the arm64 stage is left out.
    [ "$(dpkg --print-architecture)" != amd64 ] || install_packages "${arm64_packages[@]}"
    ;;
  arm64) install_packages "${build_packages[@]}" "${arm64_packages[@]}" ;;
  *) say "usage: tools/setup.sh build|lint|test|arm64"; exit 2 ;;
esac
install_cargo
[ "$task" != build ] || check_node
