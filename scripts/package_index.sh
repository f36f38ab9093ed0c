# Sourced by the setup scripts: uv reads UV_*; most machines are configured for pip, so pip's settings are passed on.
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-${PIP_DEFAULT_TIMEOUT:-180}}
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi
export UV_SYSTEM_CERTS=1
