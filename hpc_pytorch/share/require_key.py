"""What sees each request to vLLM first (--middleware): vLLM itself asks for the key on some addresses only."""
import hmac
import os


class RequireKey:
    """Ask for the key in VLLM_API_KEY, whatever the address."""

    def __init__(self, app):
        self.app = app
        self.expected = ('Bearer ' + os.environ['VLLM_API_KEY']).encode()

    async def __call__(self, scope, receive, send):
        """Pass the request on, or refuse it (`lifespan`: the server's own start)."""
        given = dict(scope.get('headers', ())).get(b'authorization', b'')
        if scope['type'] == 'lifespan' or scope['path'] == '/health' or hmac.compare_digest(given, self.expected):
            await self.app(scope, receive, send)
        elif scope['type'] == 'websocket':
            await send({'type': 'websocket.close', 'code': 1008})
        else:
            await send({'type': 'http.response.start', 'status': 401, 'headers': [(b'www-authenticate', b'Bearer')]})
            await send({'type': 'http.response.body', 'body': b'{"error": "Unauthorized"}'})
